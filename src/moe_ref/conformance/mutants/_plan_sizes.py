"""Wrong `plan`s: right for few tokens, experts or slots, and wrong for more."""

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._plan_kernel import Plan
from moe_ref.conformance.mutants._plan_rows import of_plan

_BLOCK = 256


class FirstBlock(Plan):
    """The sizes of many groups count the first 256 tokens."""

    def layout(self, experts, num_experts, capacity):
        found = super().layout(experts, num_experts, capacity)
        if num_experts > 64 and capacity is None:
            first = experts[:_BLOCK]
            found.group_sizes = np.bincount(first[first >= 0], minlength=num_experts)
        return found


class RankOfBlock(Plan):
    """Places are counted anew for each block of 256 tokens, so that an expert takes too many."""

    def admitted(self, rank, capacity, slots, experts):
        owner = experts.reshape(-1)[slots]
        key = owner * len(slots) + slots // (_BLOCK * experts.shape[1])
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        return np.arange(len(slots)) - first[number] < capacity

    def layout(self, experts, num_experts, capacity):
        found = super().layout(experts, num_experts, capacity)
        found.row = np.minimum(found.row, found.rows - 1)
        if capacity is not None:
            found.group_sizes = np.minimum(found.group_sizes, capacity)
        return found


class LastSlotsFirst(Plan):
    """Rows of an expert past the 256th are sorted backwards."""

    def sort(self, owners):
        order = super().sort(owners)
        if len(np.unique(owners)) < _BLOCK:
            return order
        return len(owners) - 1 - np.argsort(owners[::-1], kind="stable")


class LateTokensStay(Plan):
    """Tokens past the 256th get no gradient."""

    def onto_tokens(self, dy, weights, factor, kept):
        dx = super().onto_tokens(dy, weights, factor, kept)
        dx[_BLOCK:] = 0
        return dx


class ByteOfExpertBack(Plan):
    """The gradient takes the expert whose number has eight bits."""

    def vjp(self, x, experts, num_experts, weights, scale, cotangent, capacity=None):
        scale = scale[np.arange(len(scale)) % _BLOCK]
        return super().vjp(x, experts, num_experts, weights, scale, cotangent, capacity)


class EightSlotsBack(Plan):
    """The gradient of a weight past the eighth slot is lost."""

    def along(self, dy, x, factor, kept):
        return super().along(dy, x, factor, kept & (np.arange(kept.shape[1]) < 8))


class EightCopiesBack(Plan):
    """The gradient of x adds the first eight copies of a token."""

    def onto_tokens(self, dy, weights, factor, kept):
        return super().onto_tokens(dy, weights, factor, kept & (np.arange(kept.shape[1]) < 8))


class ManyColumnsBack(Plan):
    """The gradient of a weight sums over 128 columns."""

    def along(self, dy, x, factor, kept):
        return super().along(dy[:, :128], x[:, :128], factor, kept)


class LateDroppedGradient(Plan):
    """The gradient goes through dropped slots of tokens past the 256th."""

    def moved(self, layout, experts):
        late = np.arange(len(experts))[:, None] >= _BLOCK
        return (layout.row >= 0) | (late & (experts >= 0))


class LooseOrderOfMany(Plan):
    """The order of a sum over more than eight slots changes from call to call."""

    calls = 0

    def total(self, weights, back):
        self.calls += 1
        slots = back.shape[1]
        order = np.roll(np.arange(slots), self.calls if slots > 8 else 0)
        return super().total(weights[:, order], back[:, order])


class PairsOfColumns(Plan):
    """Columns are copied in pairs: a single one is not."""

    def permute(self, x, layout):
        return super().permute(x if x.shape[1] > 1 else np.zeros_like(x), layout)


MUTANTS: tuple[Mutant, ...] = (
    of_plan(FirstBlock, "PLN-01", "PLN-02", "PLN-03"),
    of_plan(RankOfBlock, "PLN-42", "PLN-43", capacity=True),
    of_plan(LastSlotsFirst, "PLN-03"),
    of_plan(LateTokensStay, "PLN-31"),
    of_plan(ByteOfExpertBack, "PLN-31", "PLN-32"),
    of_plan(EightSlotsBack, "PLN-32"),
    of_plan(EightCopiesBack, "PLN-31"),
    of_plan(ManyColumnsBack, "PLN-32"),
    of_plan(LateDroppedGradient, "PLN-48", capacity=True),
    of_plan(LooseOrderOfMany, "PLN-17"),
    of_plan(PairsOfColumns, "PLN-12"),
)
