"""`route`: from router logits to experts and weights."""

from collections.abc import Iterator
from typing import Any

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._reduce import fewer_tokens
from moe_ref.conformance.operations._returned import unpacked


def _arguments(arrays, spec, of):
    options = {k: arrays[k] for k in ("bias", "mask") if arrays.get(k) is not None}
    return (arrays["logits"], spec.router), options


def _results(result: Any, arrays, of) -> dict[str, Any]:
    if hasattr(result, "experts"):
        return {"experts": result.experts, "weights": result.weights}
    experts, weights = unpacked(result, "(experts, weights)", least=2)[:2]
    return {"experts": experts, "weights": weights}


def _form(case: Case) -> dict[str, Form]:
    tokens, choices = case.arrays["logits"].shape
    slots = (tokens, case.spec.router.k)
    return {
        "experts": Form(slots, "integer", low=-1, high=choices),
        "weights": Form(slots),
        "grad.logits": Form((tokens, choices)),
        "grad.bias": Form((choices,)),
    }


def _sizes(case: Case) -> dict[str, int]:
    tokens, choices = case.arrays["logits"].shape
    return {"tokens": tokens, "experts": choices, "k": case.spec.router.k}


def _smaller(case: Case) -> Iterator[Case]:
    return fewer_tokens(case, "logits", "mask", "cotangent")


ROUTE = Operation(
    name="route",
    signature="f(logits [tokens, experts], spec, bias=, mask=) -> (experts, weights) or Routing",
    gradient="vjp(logits, spec, cotangent [tokens, k], bias=, mask=) -> dlogits",
    arguments=_arguments,
    results=_results,
    form=_form,
    main="weights",
    differentiable=("logits", "bias"),
    unmoved=("bias",),
    sizes=_sizes,
    smaller=_smaller,
)
