"""Whole arrays: divide them among the ranks, and put the results together."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moe_ref.experts import Experts
from moe_ref.parallel._layout import named, partition, split_columns
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
    padding = ((0, -tokens % settings.token_ranks), (0, 0))
    x, weights = jnp.pad(x, padding), jnp.pad(weights, padding)
    ids = jnp.pad(ids, padding, constant_values=-1)
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


def _joined(name: str, a: jax.Array) -> tuple[int, ...]:
    """Shape with gate and up columns side by side again."""
    return (*a.shape[:-2], a.shape[-2] * a.shape[-1]) if name in ("w_in", "b_in") else a.shape
