"""The dropless plan: sort the slots by expert."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.routing import expert_load
from moe_ref.routing._ids import known


class Plan(eqx.Module):
    """Which row holds the copy of which slot. Slot j of token t has number t * k + j.

    Attributes:
        slot: slot of each row; meaningless where not `filled`.
        filled: the row holds a copy.
        row: row of each slot; meaningless where not `kept`.
        kept: the slot has a row. False for empty slots, zero experts and dropped slots.
        group_sizes: rows of each expert.
    """

    slot: Int[Array, " rows"]
    filled: Bool[Array, " rows"]
    row: Int[Array, "tokens k"]
    kept: Bool[Array, "tokens k"]
    group_sizes: Int[Array, " experts"]


@checked
def plan(experts: Int[Array, "tokens k"], *, num_experts: int) -> Plan:
    """Sort slots by expert, in token order within an expert; nothing is dropped.

    Args:
        experts: chosen ids; ids outside [0, num_experts) take no row.
        num_experts: experts with parameters.

    Returns:
        A plan with tokens * k rows: those of expert 0, of expert 1, ..., then an unfilled tail.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import dispatch

        p = dispatch.plan(jnp.array([[1, 0], [1, -1]]), num_experts=2)
        assert p.group_sizes.tolist() == [1, 2] and p.filled.tolist() == [True] * 3 + [False]
        ```
    """
    order, rank = sort_slots(experts.reshape(-1), num_experts=num_experts)
    group_sizes = expert_load(experts, num_experts=num_experts)
    _, kept = known(experts, count=num_experts, otherwise=num_experts)
    filled = jnp.arange(experts.size, dtype=jnp.int32) < jnp.sum(group_sizes, dtype=jnp.int32)
    return Plan(order, filled, rank.reshape(experts.shape), kept, group_sizes)


def sort_slots(
    experts: Int[Array, " slots"], *, num_experts: int
) -> tuple[Int[Array, " slots"], Int[Array, " slots"]]:
    """Stable order of slots by expert, the ones without an expert last, and its inverse."""
    slots = experts.size
    require(slots < 2**31, "experts", "of fewer than 2**31 slots, the range of int32", slots)
    key, _ = known(experts, count=num_experts, otherwise=num_experts)
    order = jnp.argsort(key, stable=True).astype(jnp.int32)
    positions = jnp.arange(experts.size, dtype=jnp.int32)
    return order, jnp.zeros_like(order).at[order].set(positions, unique_indices=True)
