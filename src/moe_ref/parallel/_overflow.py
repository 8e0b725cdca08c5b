"""Rows without a place, counted from rank to rank."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from moe_ref.parallel._destinations import destinations
from moe_ref.routing import expert_load


def lost_rows(
    ids: Int[Array, "sources tokens k"],
    kept: Bool[Array, "sources tokens k"],
    *,
    ranks: int,
    experts: int,
    dedup: bool,
) -> Int[Array, "sources ranks"]:
    """Rows that were to be sent and were not: a token once for each rank, or once for each slot."""
    lost = jnp.where(kept, jnp.full_like(ids, -1), ids)

    def one(ids):
        goal = destinations(ids, parts=ranks, experts=experts, dedup=dedup)
        return expert_load(goal, num_experts=ranks)

    return jax.vmap(one)(lost)
