"""Who finds a free slot of an expert."""

from decimal import Decimal

import numpy as np

from moe_ref.spec import CapacitySpec


def kept_slots(experts: np.ndarray, num_experts: int, capacity: CapacitySpec | None) -> np.ndarray:
    """Which slots are computed: not empty, and not past their expert's capacity.

    Args:
        experts: [tokens, k] ids, -1 for an empty slot. Ids from `num_experts` on are zero experts,
            which have no capacity.
        num_experts: experts with parameters.
        capacity: None drops nothing.

    Returns:
        [tokens, k] bool.
    """
    tokens, k = experts.shape
    kept = experts >= 0
    if capacity is None:
        return kept
    room = _room(capacity, tokens * k, num_experts)
    taken = [0] * num_experts
    if capacity.drop_order == "token_major":
        order = [(token, slot) for token in range(tokens) for slot in range(k)]
    else:
        order = [(token, slot) for slot in range(k) for token in range(tokens)]
    for token, slot in order:
        expert = experts[token, slot]
        if 0 <= expert < num_experts:
            kept[token, slot] = taken[expert] < room
            taken[expert] += 1
    return kept


def _room(capacity: CapacitySpec, slots: int, num_experts: int) -> int:
    """Rows of an expert: a given number, or a factor of the fair share of `slots`, at most all."""
    if capacity.capacity_factor is None:
        return min(capacity.expert_capacity or 0, slots)
    above, below = Decimal(str(float(capacity.capacity_factor))).as_integer_ratio()
    whole, rest = divmod(above * slots, below * num_experts)
    return min(whole + (rest > 0 and capacity.capacity_rounding == "ceil"), slots)
