"""The capacity plan: a fixed number of slots an expert."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.dispatch._plan import Plan, sort_slots
from moe_ref.routing import expert_load
from moe_ref.routing._ids import known
from moe_ref.spec import CapacitySpec


@checked
def plan_capacity(
    experts: Int[Array, "tokens k"], *, num_experts: int, capacity: CapacitySpec
) -> Plan:
    """Give every expert the same number of rows; what comes later is dropped.

    Args:
        experts: chosen ids; ids outside [0, num_experts) take no row.
        num_experts: experts with parameters.
        capacity: number of rows and order of service.

    Returns:
        A plan with num_experts * slots rows, expert e owning rows [e * slots, (e + 1) * slots).
        `group_sizes` counts the filled ones.

    Special cases:
        The capacity counts padding tokens in its formula, but they take no row. 0 slots drop
        everything.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import dispatch, spec

        one = spec.CapacitySpec(expert_capacity=1)
        p = dispatch.plan_capacity(jnp.array([[0], [0], [1]]), num_experts=2, capacity=one)
        assert p.kept.tolist() == [[True], [False], [True]]
        ```
    """
    require(num_experts >= 1, "num_experts", "at least 1", num_experts)
    tokens, k = experts.shape
    slots = capacity.slots(tokens=tokens, k=k, num_experts=num_experts)
    k_major = capacity.drop_order == "k_major"
    served = (experts.T if k_major else experts).reshape(-1)
    order, rank = sort_slots(served, num_experts=num_experts)
    load = expert_load(experts, num_experts=num_experts)
    starts = jnp.cumsum(load) - load
    index, inside = known(experts, count=num_experts, otherwise=0)
    rank = (rank.reshape(k, tokens).T if k_major else rank.reshape(tokens, k)) - starts[index]
    kept = inside & (rank < slots)
    group_sizes = jnp.minimum(load, slots)
    number = jnp.arange(slots, dtype=jnp.int32)
    filled = number[None, :] < group_sizes[:, None]
    at = jnp.where(filled, starts[:, None] + number[None, :], jnp.zeros_like(filled, jnp.int32))
    served_slot = order[at.reshape(-1)] if order.size else jnp.zeros(at.size, jnp.int32)
    slot = (served_slot % max(tokens, 1)) * k + served_slot // max(tokens, 1)
    return Plan(
        slot=slot if k_major else served_slot,
        filled=filled.reshape(-1),
        row=index * slots + rank,
        kept=kept,
        group_sizes=group_sizes,
    )
