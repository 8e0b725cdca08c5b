"""Rows without a place, counted from rank to rank."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from moe_ref._varying import over_axes
from moe_ref.parallel._destinations import destinations
from moe_ref.parallel._settings import Settings
from moe_ref.routing import expert_load


def lost_rows(
    settings: Settings,
    ids: Int[Array, "tokens k"],
    kept: Bool[Array, "tokens k"],
    num_experts: int,
) -> Int[Array, "sources destinations"]:
    """Rows that were to be sent and were not, inside `jax.shard_map`; the same on every rank.

    A token counts once for each rank, or once for each slot without dedup.
    """
    ranks, axes = settings.ranks, settings.layout.tokens
    lost = jnp.where(kept, jnp.full_like(ids, -1), ids)
    goal = destinations(lost, parts=ranks, experts=num_experts // ranks, dedup=settings.dedup)
    own = expert_load(goal, num_experts=ranks)[None]
    here = jnp.arange(settings.token_ranks, dtype=jnp.int32) == lax.axis_index(axes)
    return over_axes(jnp.where(here[:, None], own, jnp.zeros_like(own)), axes)
