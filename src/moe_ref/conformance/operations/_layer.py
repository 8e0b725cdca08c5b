"""`layer`: tokens in, tokens out."""

from typing import Any

from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance.operations._layer_sizes import fit, smaller
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._returned import unpacked


def _arguments(arrays, spec, of):
    options = {"mask": arrays["mask"]} if arrays.get("mask") is not None else {}
    return (of.layer(arrays["layer"], spec), arrays["x"]), options


def _results(result: Any, arrays, of) -> dict[str, Any]:
    if not isinstance(result, tuple):
        return {"y": result}
    y, aux = unpacked(result, "y, or (y, aux)", least=2)[:2]
    routing = getattr(aux, "routing", None)
    if routing is None:
        return {"y": y}
    names = ("experts", "weights", "logits")
    found = {name: getattr(routing, name, None) for name in names}
    return {"y": y} | {name: result for name, result in found.items() if result is not None}


def _form(case: Case) -> dict[str, Form]:
    router, tokens = case.spec.router, len(case.arrays["x"])
    forms = {
        "y": Form((tokens, case.spec.d_model)),
        "experts": Form((tokens, router.k), "integer", low=-1, high=router.num_choices),
        "weights": Form((tokens, router.k)),
        "logits": Form((tokens, router.num_choices)),
    }
    inputs = leaves({k: v for k, v in case.arrays.items() if k in ("x", "layer")})
    return forms | {f"grad.{name}": Form(array.shape) for name, array in inputs.items()}


def _sizes(case: Case) -> dict[str, int]:
    spec = case.spec
    return {
        "tokens": len(case.arrays["x"]),
        "experts": spec.router.num_experts,
        "d_model": spec.d_model,
        "d_hidden": spec.experts.d_hidden,
        "k": spec.router.k,
    }


LAYER = Operation(
    name="layer",
    signature="f(layer, x [tokens, d_model], mask=) -> y, or (y, aux) with aux.routing",
    gradient="vjp(layer, x, cotangent, mask=) -> {'x': dx, 'layer.experts.w_in': ..., ...}",
    arguments=_arguments,
    results=_results,
    form=_form,
    main="y",
    differentiable=("x",),
    unmoved=("layer.router.selection_bias",),
    sizes=_sizes,
    smaller=smaller,
    fit=fit,
)
