"""`layer`: tokens in, tokens out."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._reduce import fewer_tokens
from moe_ref.layers import MoE
from moe_ref.spec import LayerSpec


def _arguments(arrays, spec, of):
    options = {"mask": arrays["mask"]} if arrays.get("mask") is not None else {}
    return (of.layer(arrays["layer"], spec), arrays["x"]), options


def _results(result: Any, arrays, of) -> dict[str, Any]:
    if not isinstance(result, tuple):
        return {"y": result}
    y, aux = result[:2]
    routing = getattr(aux, "routing", None)
    if routing is None:
        return {"y": y}
    names = ("experts", "weights", "logits")
    return {"y": y} | {name: getattr(routing, name) for name in names}


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


def _smaller(case: Case) -> Iterator[Case]:
    """Fewer tokens, fewer experts, a narrower hidden layer, narrower tokens: as the spec allows."""
    yield from fewer_tokens(case, "x", "mask", "cotangent")
    spec = case.spec
    sizes = {"num_experts": spec.router.num_experts, "d_hidden": spec.experts.d_hidden}
    sizes |= {"d_model": spec.d_model, "shared_d_hidden": spec.shared_d_hidden}
    for name, size in sizes.items():
        for fewer in {size // 2, size - 1} if size > 1 else ():
            try:
                narrower = spec.replace(**{name: fewer})
            except ValueError:
                continue
            if spec.router.zero_experts and name == "num_experts":
                continue
            like = jax.tree_util.tree_map(
                lambda leaf: leaf.shape,
                eqx.filter_eval_shape(lambda s=narrower: MoE(s, key=jax.random.key(0))),
            )
            yield _cut(case, narrower, like)


def _cut(case: Case, spec: LayerSpec, like: Any) -> Case:
    """Keep the first entries along every axis of every parameter, gate and up apart."""

    def corner(array: np.ndarray, shape: tuple[int, ...], *, gated: bool = False) -> np.ndarray:
        if gated:
            half = shape[-1] // 2
            parts = np.split(array, 2, axis=-1)
            return np.concatenate([corner(part, (*shape[:-1], half)) for part in parts], axis=-1)
        return array[tuple(slice(n) for n in shape)]

    def cut(arrays: dict[str, Any], like: Any) -> dict[str, Any]:
        gated = spec.experts.gated
        return {
            name: cut(value, getattr(like, name))
            if isinstance(value, dict)
            else corner(value, getattr(like, name), gated=gated and name in ("w_in", "b_in"))
            for name, value in arrays.items()
            if value is not None
        }

    arrays: dict[str, Any] = dict(case.arrays) | {"layer": cut(case.arrays["layer"], like)}
    for name in ("x", "cotangent"):
        if name in arrays:
            arrays[name] = arrays[name][:, : spec.d_model]
    return dataclasses.replace(case, arrays=arrays, spec=spec)


LAYER = Operation(
    name="layer",
    signature="f(layer, x [tokens, d_model], mask=) -> y, or (y, aux) with aux.routing",
    gradient="vjp(layer, x, cotangent, mask=) -> {'x': dx, 'layer.experts.w_in': ..., ...}",
    arguments=_arguments,
    results=_results,
    form=_form,
    main="y",
    differentiable=("x",),
    sizes=_sizes,
    smaller=_smaller,
)
