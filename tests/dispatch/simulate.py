"""Plans in plain Python: who gets a row, in which order, and what moving by it means."""

import dataclasses

import numpy as np

from moe_ref.spec import CapacitySpec


@dataclasses.dataclass
class Rows:
    """`rows[e]` lists the (token, slot) pairs in the rows of expert e, in order."""

    rows: list[list[tuple[int, int]]]
    kept: np.ndarray


def served(ids: np.ndarray, num_experts: int, capacity: CapacitySpec | None) -> Rows:
    tokens, k = ids.shape
    order = [(token, slot) for token in range(tokens) for slot in range(k)]
    room = tokens * k
    if capacity is not None:
        room = capacity.slots(tokens=tokens, k=k, num_experts=num_experts)
        if capacity.drop_order == "k_major":
            order = [(token, slot) for slot in range(k) for token in range(tokens)]
    rows: list[list[tuple[int, int]]] = [[] for _ in range(num_experts)]
    kept = np.zeros(ids.shape, bool)
    for token, slot in order:
        expert = ids[token, slot]
        if 0 <= expert < num_experts and len(rows[expert]) < room:
            rows[expert].append((token, slot))
            kept[token, slot] = True
    return Rows(rows, kept)
