"""moe_ref's own dispatch and combine, on simulated ranks, as they are judged."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from moe_ref import parallel
from moe_ref.conformance._implementation import Implementation

WAYS: dict[str, dict[str, Any]] = {
    "allgather": {"transport": "allgather"},
    "alltoall": {"transport": "alltoall"},
    "alltoall, once a slot": {"transport": "alltoall", "dedup": False},
    "ragged": {"transport": "ragged", "ragged": parallel.emulate_ragged_all_to_all},
}


def exchanges() -> tuple[Implementation, ...]:
    """Every way to send rows, with dedup and without; experts that do not divide are declined."""
    return tuple(
        Implementation(
            name=f"dispatch_combine[{name}]",
            op="dispatch_combine",
            function=functools.partial(_value, way=tuple(way.items())),
            vjp=functools.partial(_vjp, way=tuple(way.items())),
            gradients=True,
        )
        for name, way in WAYS.items()
    )


@functools.partial(jax.jit, static_argnames="way")
def _value(x: Any, experts: Any, weights: Any, scale: Any, *, way: Any) -> dict[str, Any]:
    plan = parallel.exchange_plan(experts, num_experts=scale.size)
    rank = functools.partial(_rank, num_experts=scale.size, way=way)
    y = jax.vmap(rank, axis_name="expert")(x, weights, scale.reshape(len(x), -1), experts)
    once = {"rows_sent": plan.rows_sent} if dict(way).get("dedup", True) else {}
    return {"y": y, "copies_sent": plan.copies_sent} | once


@functools.partial(jax.jit, static_argnames="way")
def _vjp(x: Any, experts: Any, weights: Any, scale: Any, cotangent: Any, *, way: Any) -> Any:
    def rank(x, weights, own, experts, cotangent):
        run = functools.partial(_rank, experts=experts, num_experts=scale.size, way=way)
        return jax.vjp(run, x, weights, own)[1](cotangent)

    # The gradient is taken inside, where the axis has its name.
    own = scale.reshape(len(x), -1)
    dx, dw, ds = jax.vmap(rank, axis_name="expert")(x, weights, own, experts, cotangent)
    return dx, dw, ds.reshape(-1)


def _rank(x: Any, weights: Any, own: Any, experts: Any, *, num_experts: int, way: Any) -> Any:
    """One rank: its experts multiply what they get, in the dtype of their factors."""
    got = parallel.dispatch(
        x, experts, weights, axis="expert", num_experts=num_experts, **dict(way)
    )
    total = jnp.zeros_like(got.x, own.dtype)
    for slot in range(got.experts.shape[1]):
        here = got.experts[:, slot] >= 0
        factor = own[jnp.where(here, got.experts[:, slot], jnp.zeros_like(got.experts[:, slot]))]
        # Rows and weights of other ranks may hold anything: they are masked before they multiply.
        row = jnp.where(here[:, None], got.x, jnp.zeros_like(got.x)).astype(own.dtype)
        weight = jnp.where(here, got.weights[:, slot], jnp.zeros_like(got.weights[:, slot]))
        copy = weight[:, None].astype(own.dtype) * (factor[:, None] * row)
        total += jnp.where(here[:, None], copy, jnp.zeros_like(copy))
    return parallel.combine(total, got).astype(x.dtype)
