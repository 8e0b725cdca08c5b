"""`losses`: the auxiliary losses of a router, the load, and the step of the selection bias."""

from collections.abc import Iterator
from typing import Any

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._reduce import fewer_tokens
from moe_ref.conformance.operations._returned import Unusable, unpacked

_NAMES = ("balance", "z")
_EXPECTED = "(balance, z), or a dict of them"


def _arguments(arrays, spec, of):
    options = {"mask": arrays["mask"]} if arrays.get("mask") is not None else {}
    return (arrays["logits"], arrays["experts"], spec.router), options


def _results(result: Any, arrays, of) -> dict[str, Any]:
    if not isinstance(result, dict):
        pair = getattr(result, "shape", None) == (2,)
        two = result if pair else unpacked(result, _EXPECTED, least=2, most=2)
        result = dict(zip(_NAMES, two, strict=True))
    missing = [name for name in _NAMES if result.get(name) is None]
    if missing:
        raise Unusable(f"it returned no {' and no '.join(missing)}, expected {_EXPECTED}")
    rest = {name: result[name] for name in ("load", "step") if name in result}
    return {"losses": of.stack([result["balance"], result["z"]])} | rest


def _form(case: Case) -> dict[str, Form]:
    tokens, choices = case.arrays["logits"].shape
    return {
        "losses": Form((2,)),
        "load": Form((choices,), "integer"),
        "step": Form((choices,), "any"),
        "grad.logits": Form((tokens, choices)),
    }


def _sizes(case: Case) -> dict[str, int]:
    tokens, choices = case.arrays["logits"].shape
    return {"tokens": tokens, "experts": choices, "k": case.spec.router.k}


def _smaller(case: Case) -> Iterator[Case]:
    return fewer_tokens(case, "logits", "experts", "mask")


LOSSES = Operation(
    name="losses",
    signature=(
        "f(logits [tokens, experts], experts [tokens, k], spec, mask=) -> (balance, z), or a dict "
        "that may add load [experts] and step [experts], the sign of (mean load - load)"
    ),
    gradient="vjp(logits, experts, spec, cotangent [2], mask=) -> dlogits",
    arguments=_arguments,
    results=_results,
    form=_form,
    main="losses",
    differentiable=("logits",),
    sizes=_sizes,
    smaller=_smaller,
)
