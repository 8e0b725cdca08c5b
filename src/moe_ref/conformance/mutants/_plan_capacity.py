"""Wrong `plan`s: who is dropped, and what becomes of it."""

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._plan_kernel import Plan, wide
from moe_ref.conformance.mutants._plan_rows import of_plan


class OneTooFew(Plan):
    """Places are counted from 1, so an expert takes one row fewer than it could."""

    def admitted(self, rank, capacity, slots, experts):
        return rank + 1 < capacity


class FirstChoices(Plan):
    """First choices are served before second ones, where token order was asked for."""

    def admitted(self, rank, capacity, slots, experts):
        k = experts.shape[1]
        served = np.lexsort((slots // k, slots % k, experts.reshape(-1)[slots]))
        place = np.empty_like(rank)
        place[served] = rank
        return place < capacity


class LastTokens(Plan):
    """The last tokens find room instead of the first."""

    def admitted(self, rank, capacity, slots, experts):
        owners = experts.reshape(-1)[slots]
        load = np.bincount(owners, minlength=owners.max(initial=0) + 1)
        return load[owners] - rank <= capacity


class NeverDrops(Plan):
    """Priorities are summed over the wrong axis: nothing is dropped, and rows overwrite others."""

    def admitted(self, rank, capacity, slots, experts):
        return rank >= 0

    def layout(self, experts, num_experts, capacity):
        found = super().layout(experts, num_experts, capacity)
        found.row = np.minimum(found.row, found.rows - 1)
        return found


class Overwrites(Plan):
    """What finds no room is written over the last row of its expert."""

    def layout(self, experts, num_experts, capacity):
        found = super().layout(experts, num_experts, capacity)
        if capacity:
            late = (experts >= 0) & (found.row < 0)
            found.row[late] = experts[late] * capacity + capacity - 1
        return found


class ZeroIsNone(Plan):
    """Capacity 0 is read as no capacity."""

    def limited(self, capacity):
        return bool(capacity)


class TopOfTokens(Plan):
    """A capacity above the number of tokens is an error."""

    def admitted(self, rank, capacity, slots, experts):
        if capacity > len(experts):
            raise ValueError(f"cannot take the top {capacity} of {len(experts)} tokens")
        return super().admitted(rank, capacity, slots, experts)


class PassesThrough(Plan):
    """A dropped slot contributes its weight times x, as if its expert did nothing."""

    def unpermute(self, rows, weights, experts, layout, x):
        y = super().unpermute(rows, weights, experts, layout, x)
        dropped = (experts >= 0) & (layout.row < 0)
        return (wide(y) + self.used(weights, dropped).sum(axis=1)[:, None] * wide(x)).astype(
            y.dtype
        )


class SurvivorsTakeAll(Plan):
    """Survivors share the weight of what was dropped."""

    def unpermute(self, rows, weights, experts, layout, x):
        of_all = self.used(weights, experts >= 0).sum(axis=1, keepdims=True)
        own = self.used(weights, layout.row >= 0)
        left = own.sum(axis=1, keepdims=True)
        shared = own * of_all / np.where(left != 0, left, 1)
        return super().unpermute(rows, shared, experts, layout, x)


class DroppedWeightCounts(Plan):
    """The weight of a dropped slot is multiplied with 0, which a NaN survives."""

    def used(self, weights, kept):
        return wide(weights) * kept


class DroppedGradient(Plan):
    """The gradient goes through dropped slots as if they had a row."""

    def moved(self, layout, experts):
        return experts >= 0


MUTANTS: tuple[Mutant, ...] = tuple(
    of_plan(kernel, *killers, seen=seen, capacity=True)
    for kernel, killers, seen in (
        (OneTooFew, ("PLN-41", "PLN-45"), ""),
        (FirstChoices, ("PLN-42", "PLN-43"), ""),
        (LastTokens, ("PLN-42", "PLN-46"), ""),
        (NeverDrops, ("PLN-41", "PLN-43"), "huggingface/transformers#48293"),
        (Overwrites, ("PLN-42", "PLN-43"), "deepspeedai/DeepSpeed#1658"),
        (ZeroIsNone, ("PLN-45",), "microsoft/Tutel#303"),
        (TopOfTokens, ("PLN-45",), "deepspeedai/DeepSpeed#8155"),
        (PassesThrough, ("PLN-43", "PLN-45"), "huggingface/transformers#37017"),
        (SurvivorsTakeAll, ("PLN-43",), ""),
        (DroppedWeightCounts, ("PLN-44",), ""),
        (DroppedGradient, ("PLN-47", "PLN-48"), ""),
    )
)
