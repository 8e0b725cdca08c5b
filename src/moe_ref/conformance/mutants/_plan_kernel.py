"""`plan` in NumPy, right, in steps: a mutant replaces one of them."""

import dataclasses
import functools
from typing import Any

import numpy as np


@dataclasses.dataclass
class Layout:
    """Where the copies go.

    Attributes:
        row: [tokens, k] row of each slot, -1 for one without.
        group_sizes: [experts].
        rows: how many there are, the unfilled ones included.
    """

    row: np.ndarray
    group_sizes: np.ndarray
    rows: int


class Plan:
    """Sort the slots by expert, gather, and sum each token's rows in float32."""

    @np.errstate(all="ignore")
    def value(
        self, x: np.ndarray, experts: np.ndarray, num_experts: int, capacity: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Rows, group sizes, and what brings rows back."""
        layout = self.layout(experts, num_experts, capacity)
        rows = self.permute(x, layout)
        back = functools.partial(self.unpermute, experts=experts, layout=layout, x=x)
        return rows, layout.group_sizes, np.errstate(all="ignore")(back)

    @np.errstate(all="ignore")
    def vjp(
        self,
        x: np.ndarray,
        experts: np.ndarray,
        num_experts: int,
        weights: np.ndarray,
        scale: np.ndarray,
        cotangent: np.ndarray,
        capacity: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of x and of the weights."""
        layout = self.layout(experts, num_experts, capacity)
        kept = self.moved(layout, experts)
        factor = np.where(kept, wide(scale)[np.where(kept, experts, 0)], 0)
        dx = self.onto_tokens(wide(cotangent), self.used(weights, kept), factor, kept)
        dw = self.along(wide(cotangent), wide(x), factor, kept)
        return dx.astype(x.dtype), dw.astype(weights.dtype)

    def layout(self, experts: np.ndarray, num_experts: int, capacity: int | None) -> Layout:
        """Give every filled slot its row."""
        owner = self.owner(experts, num_experts)
        slots = self.service(owner)
        slots = slots[owner.reshape(-1)[slots] >= 0]
        slots = slots[self.sort(owner.reshape(-1)[slots])]
        owners = owner.reshape(-1)[slots]
        load = np.bincount(owners, minlength=num_experts)
        rank = self.position(owners, load)
        first, rows = self.starts(load), experts.size
        if self.limited(capacity):
            assert capacity is not None
            keep = self.admitted(rank, capacity, slots, experts)
            slots, owners = slots[keep], owners[keep]
            rank = self.position(owners, np.bincount(owners, minlength=num_experts))
            first, rows = np.arange(num_experts) * capacity, num_experts * capacity
        row = np.full(experts.size, -1)
        row[slots] = first[owners] + rank
        sizes = self.counts(owners, num_experts)
        return Layout(row.reshape(experts.shape), sizes, rows)

    def owner(self, experts: np.ndarray, num_experts: int) -> np.ndarray:
        """The expert of each slot, negative for none."""
        return experts

    def service(self, owner: np.ndarray) -> np.ndarray:
        """Numbers of the slots in the order in which they are served."""
        return np.arange(owner.size)

    def sort(self, owners: np.ndarray) -> np.ndarray:
        """Order of the served slots by expert."""
        return np.argsort(owners, kind="stable")

    def position(self, owners: np.ndarray, load: np.ndarray) -> np.ndarray:
        """Which row of its expert each sorted slot has."""
        return np.arange(len(owners)) - np.repeat(np.cumsum(load) - load, load)

    def starts(self, load: np.ndarray) -> np.ndarray:
        """First row of each expert."""
        return np.cumsum(load) - load

    def limited(self, capacity: int | None) -> bool:
        """Whether experts have a capacity."""
        return capacity is not None

    def admitted(
        self, rank: np.ndarray, capacity: int, slots: np.ndarray, experts: np.ndarray
    ) -> np.ndarray:
        """Which of the sorted slots find room."""
        return rank < capacity

    def counts(self, owners: np.ndarray, num_experts: int) -> np.ndarray:
        """Group sizes."""
        return np.bincount(owners, minlength=num_experts)

    def permute(self, x: np.ndarray, layout: Layout) -> np.ndarray:
        """Copy tokens to their rows; the others are unwritten memory."""
        rows = np.full((layout.rows, x.shape[1]), np.nan, x.dtype)
        token, slot = np.nonzero(layout.row >= 0)
        rows[layout.row[token, slot]] = x[token]
        return rows

    def unpermute(
        self,
        rows: np.ndarray,
        weights: np.ndarray,
        experts: np.ndarray,
        layout: Layout,
        x: np.ndarray,
    ) -> np.ndarray:
        """The weighted sum of each token's rows."""
        kept = layout.row >= 0
        back = np.zeros((*kept.shape, rows.shape[1]), wide(rows).dtype)
        back[kept] = rows[layout.row[kept]]
        return self.total(self.used(weights, kept), back).astype(x.dtype)

    def used(self, weights: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Weights in float32, 0 for slots without a row."""
        return np.where(kept, wide(weights), 0)

    def total(self, weights: np.ndarray, back: np.ndarray) -> np.ndarray:
        """Sum over slots, the first slot first."""
        y = np.zeros((len(back), back.shape[2]), back.dtype)
        for slot in range(back.shape[1]):
            y += weights[:, slot, None] * back[:, slot]
        return y

    def moved(self, layout: Layout, experts: np.ndarray) -> np.ndarray:
        """Slots that a gradient goes through."""
        return layout.row >= 0

    def onto_tokens(
        self, dy: np.ndarray, weights: np.ndarray, factor: np.ndarray, kept: np.ndarray
    ) -> np.ndarray:
        """Gradient of x: summed over the copies of each token."""
        copies = np.zeros((*kept.shape, dy.shape[1]), dy.dtype)
        token, slot = np.nonzero(kept)
        copies[token, slot] = (weights * factor)[token, slot, None] * dy[token]
        return self.total(np.ones_like(weights), copies)

    def along(
        self, dy: np.ndarray, x: np.ndarray, factor: np.ndarray, kept: np.ndarray
    ) -> np.ndarray:
        """Gradient of the weights: each slot's row against the cotangent."""
        products = (dy * x).sum(axis=1)[:, None]
        return np.where(kept, factor * products, 0)


def wide(array: np.ndarray) -> np.ndarray:
    """In float32 at least."""
    return array if array.dtype == np.float64 else array.astype(np.float32)
