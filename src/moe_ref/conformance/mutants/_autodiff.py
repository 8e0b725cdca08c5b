"""NumPy kernels that JAX differentiates: a value comes along with each gradient.

JAX calls the functions of a `custom_vjp` with numbers where nothing is compiled.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moe_ref.conformance._case import nest
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._plan_kernel import wide
from moe_ref.conformance.operations._libraries import library

_numpy = functools.partial(jax.tree_util.tree_map, np.asarray)
_jax = functools.partial(jax.tree_util.tree_map, jnp.asarray)


def autodiff(name: str, op: str, kernel: Any, alongside: Any = None, **declared: Any):
    """An implementation of JAX arrays, whose gradient is a NumPy kernel's own.

    Args:
        name: for reports.
        op: the operation.
        kernel: a NumPy kernel.
        alongside: the NumPy kernel that computes the value beside a gradient; None: the same.
        **declared: further fields of `Implementation`.

    Returns:
        The implementation.
    """
    function = functools.partial(_CALLS[op], kernel, kernel if alongside is None else alongside)
    fields: dict[str, Any] = {"may_decline": False, "gradients": True} | declared
    return Implementation(name=name, op=op, function=function, **fields)


def _taped(value: Callable, alongside: Callable, vjp: Callable, *moving: Any) -> Any:
    """Call `value`, and where a gradient is wanted too, `alongside`."""

    def run(function: Callable) -> Callable:
        return np.errstate(all="ignore")(lambda *given: _jax(function(*_numpy(given))))

    call = jax.custom_vjp(run(value))
    call.defvjp(
        lambda *given: (run(alongside)(*given), given),
        lambda given, cotangent: run(vjp)(*given, cotangent),
    )
    return call(*moving)


def _grouped_matmul(kernel: Any, alongside: Any, x: Any, w: Any, group_sizes: Any) -> Any:
    sizes = np.asarray(group_sizes)
    return _taped(
        lambda x, w: kernel.value(x, w, sizes),
        lambda x, w: alongside.value(x, w, sizes),
        lambda x, w, dy: kernel.vjp(x, w, sizes, dy),
        x,
        w,
    )


def _route(
    kernel: Any, alongside: Any, logits: Any, spec: Any, bias: Any = None, mask: Any = None
) -> Any:
    mask = _numpy(mask)
    return _taped(
        lambda logits, *bias: kernel.value(logits, spec, *bias or [None], mask),
        lambda logits, *bias: alongside.value(logits, spec, *bias or [None], mask),
        lambda logits, *rest: kernel.vjp(logits, spec, rest[-1][1], *rest[:-1] or [None], mask),
        logits,
        *([] if bias is None else [bias]),
    )


def _losses(
    kernel: Any, alongside: Any, logits: Any, experts: Any, spec: Any, mask: Any = None
) -> Any:
    experts, mask = _numpy((experts, mask))

    def pull(logits: np.ndarray, cotangent: Any) -> tuple[np.ndarray]:
        both = np.stack([cotangent["balance"], cotangent["z"]])
        return (kernel.vjp(logits, experts, spec, both, mask),)

    return _taped(
        lambda logits: kernel.value(logits, experts, spec, mask),
        lambda logits: alongside.value(logits, experts, spec, mask),
        pull,
        logits,
    )


def _plan(
    kernel: Any, alongside: Any, x: Any, experts: Any, num_experts: int, capacity: int | None = None
) -> Any:
    experts, like = np.asarray(experts), np.zeros((0, x.shape[1]), x.dtype)
    layout = kernel.layout(experts, num_experts, capacity)
    kept = layout.row >= 0
    token, slot = np.nonzero(kept)
    mine = layout.row[token, slot]

    def pull_rows(x: np.ndarray, d_rows: np.ndarray) -> tuple[np.ndarray]:
        copies = np.zeros((*kept.shape, x.shape[1]), wide(x).dtype)
        copies[token, slot] = d_rows[mine]
        return (kernel.total(np.ones(kept.shape, copies.dtype), copies).astype(x.dtype),)

    def pull_back(rows: np.ndarray, weights: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        d_rows, dw = np.zeros_like(rows), np.zeros_like(weights)
        d_rows[mine] = wide(weights)[token, slot, None] * wide(dy)[token]
        dw[token, slot] = (wide(dy)[token] * wide(rows)[mine]).sum(axis=1)
        return d_rows, dw

    def back(by: Any) -> Callable:
        return functools.partial(by.unpermute, experts=experts, layout=layout, x=like)

    rows = _taped(
        lambda x: kernel.permute(x, layout), lambda x: alongside.permute(x, layout), pull_rows, x
    )
    unpermute = functools.partial(_taped, back(kernel), back(alongside), pull_back)
    return rows, jnp.asarray(layout.group_sizes), unpermute


def _layer(kernel: Any, alongside: Any, layer: Any, x: Any, mask: Any = None) -> Any:
    mask, numpy = _numpy(mask), library("numpy")
    leaves = jax.tree_util.tree_flatten_with_path(layer)[0]
    parameters = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}

    def value(by: Any) -> Callable:
        def call(parameters: dict[str, np.ndarray], x: np.ndarray) -> Any:
            y, aux = by.value(numpy.layer(nest(parameters), layer.spec), x, mask)
            return y, vars(aux.routing)

        return call

    def pull(parameters: dict[str, np.ndarray], x: np.ndarray, cotangent: Any) -> Any:
        found = kernel.vjp(numpy.layer(nest(parameters), layer.spec), x, cotangent[0], mask)
        return {name: found[f"layer.{name}"] for name in parameters}, found["x"]

    y, routing = _taped(value(kernel), value(alongside), pull, parameters, x)
    return y, types.SimpleNamespace(routing=types.SimpleNamespace(**routing))


def _dispatch_combine(
    kernel: Any, alongside: Any, x: Any, experts: Any, weights: Any, scale: Any
) -> Any:
    experts = np.asarray(experts)
    return _taped(
        lambda x, weights, scale: kernel.value(x, experts, weights, scale),
        lambda x, weights, scale: alongside.value(x, experts, weights, scale),
        lambda x, weights, scale, d: kernel.vjp(x, experts, weights, scale, d["y"]),
        x,
        weights,
        scale,
    )


_CALLS = {
    "grouped_matmul": _grouped_matmul,
    "grouped_matmul_mx": _grouped_matmul,
    "route": _route,
    "losses": _losses,
    "plan": _plan,
    "layer": _layer,
    "dispatch_combine": _dispatch_combine,
}
