"""Whole arrays: divide them among the ranks, and put the results together."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moe_ref.experts import Experts
from moe_ref.parallel._layout import named, partition, split_columns
from moe_ref.parallel._overflow import lost_rows
from moe_ref.parallel._rank import run_rank
from moe_ref.parallel._settings import Settings
from moe_ref.spec import LayerSpec


# Compiled by itself, so that eager calls find the same program.
@functools.partial(jax.jit, static_argnums=(0, 5))
def run_whole(
    settings: Settings,
    x: Float[Array, "tokens d_expert"],
    ids: Int[Array, "tokens k"],
    weights: Float[Array, "tokens k"],
    experts: Experts,
    spec: LayerSpec,
) -> tuple[Float[Array, "tokens d_expert"], Bool[Array, "tokens k"]]:
    """The sums of all tokens, and which slots were processed.

    Args:
        settings: how the experts are divided.
        x: tokens of all ranks; empty ones are added where they do not divide.
        ids: expert of each slot.
        weights: weight of each slot.
        experts: parameters of all ranks.
        spec: the layer.
    """
    layout, tokens = settings.layout, x.shape[0]
    x, ids, weights = _padded(settings, x), _padded(settings, ids, -1), _padded(settings, weights)
    parameters = split_columns(named(experts), spec.experts)

    def local(x, ids, weights, parameters):
        own = {name: a.reshape(_joined(name, a)) for name, a in parameters.items()}
        mine = Experts(own["w_in"], own["w_out"], own.get("b_in"), own.get("b_out"))
        return run_rank(settings, x, ids, weights, mine, spec)

    rows = jax.P(layout.tokens)
    y, kept = jax.shard_map(
        local,
        mesh=settings.mesh,
        in_specs=(rows, rows, rows, {name: partition(name, layout) for name in parameters}),
        out_specs=(rows, rows),
        check_vma=True,
    )(x, ids, weights, parameters)
    return y[:tokens], kept[:tokens]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def per_token_whole(
    settings: Settings,
    function: Callable[..., Any],
    static: tuple[tuple[str, Any], ...],
    parameters: Any,
    *arrays: Any,
) -> Any:
    """Call `function(parameters, *arrays, **static)` on each rank's rows, and put them together."""
    rows, tokens = jax.P(settings.layout.tokens), len(jax.tree.leaves(arrays)[0])
    result = jax.shard_map(
        lambda parameters, arrays: function(parameters, *arrays, **dict(static)),
        mesh=settings.mesh,
        in_specs=(jax.P(), rows),
        out_specs=rows,
        check_vma=True,
    )(parameters, jax.tree.map(functools.partial(_padded, settings), arrays))
    return jax.tree.map(lambda a: a[:tokens], result)


@functools.partial(jax.jit, static_argnums=(0, 3))
def lost_whole(
    settings: Settings,
    ids: Int[Array, "tokens k"],
    kept: Bool[Array, "tokens k"],
    num_experts: int,
) -> Int[Array, "sources destinations"]:
    """Rows that were to be sent and were not, of all ranks."""
    rows = jax.P(settings.layout.tokens)
    return jax.shard_map(
        lambda ids, kept: lost_rows(settings, ids, kept, num_experts),
        mesh=settings.mesh,
        in_specs=(rows, rows),
        out_specs=jax.P(),
        check_vma=True,
    )(_padded(settings, ids, -1), _padded(settings, kept))


def _padded(settings: Settings, a: jax.Array, fill: int = 0) -> jax.Array:
    """With empty rows at the end, so that all ranks have as many."""
    missing = -a.shape[0] % settings.token_ranks
    if not missing:
        return a
    return jnp.pad(a, ((0, missing), *((0, 0),) * (a.ndim - 1)), constant_values=fill)


def _joined(name: str, a: jax.Array) -> tuple[int, ...]:
    """Shape with gate and up columns side by side again."""
    return (*a.shape[:-2], a.shape[-2] * a.shape[-1]) if name in ("w_in", "b_in") else a.shape
