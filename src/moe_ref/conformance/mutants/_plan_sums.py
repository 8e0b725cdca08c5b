"""Wrong `plan`s: what comes back has the wrong weights, or is summed the wrong way."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._plan_kernel import Plan, wide
from moe_ref.conformance.mutants._plan_rows import of_plan


class WeightsUnmoved(Plan):
    """Weights stay in slot order where the rows are sorted."""

    def unpermute(self, rows, weights, experts, layout, x):
        at = np.where(layout.row >= 0, layout.row, 0)
        moved = weights.reshape(-1)[np.minimum(at, max(weights.size - 1, 0))]
        return super().unpermute(rows, moved, experts, layout, x)


class Uniform(Plan):
    """Every slot weighs 1/k."""

    def used(self, weights, kept):
        return np.where(kept, np.float32(1 / max(weights.shape[1], 1)), 0)


class OneChoice(Plan):
    """With one slot the weight is taken for 1."""

    def used(self, weights, kept):
        return super().used(np.ones_like(weights) if weights.shape[1] == 1 else weights, kept)


class TwoChoices(Plan):
    """Only the first two slots are summed."""

    def total(self, weights, back):
        return super().total(weights[:, :2], back[:, :2])


class Renormalizes(Plan):
    """The weights are divided by their sum."""

    def used(self, weights, kept):
        own = super().used(weights, kept)
        total = own.sum(axis=1, keepdims=True)
        return own / np.where(total != 0, total, 1)


class Epsilon(Plan):
    """The weights are divided by 1 + 1e-7, an epsilon that was meant for a sum."""

    def used(self, weights, kept):
        return super().used(weights, kept) / np.float32(1 + 1.2e-7)


class Negligible(Plan):
    """Slots with weights below 1e-5 are skipped."""

    def used(self, weights, kept):
        own = super().used(weights, kept)
        return np.where(np.abs(own) < 1e-5, 0, own)


class NarrowSum(Plan):
    """The rows of a token are summed in bfloat16."""

    def total(self, weights, back):
        y = np.zeros((len(back), back.shape[2]), np.float32)
        for slot in range(back.shape[1]):
            product = wide((weights[:, slot, None] * back[:, slot]).astype(ml_dtypes.bfloat16))
            y = wide((y + product).astype(ml_dtypes.bfloat16))
        return y


class NarrowWeights(Plan):
    """The weights are rounded to bfloat16."""

    def used(self, weights, kept):
        return super().used(weights.astype(ml_dtypes.bfloat16), kept)


class Truncates(Plan):
    """The sum is cut off instead of rounded."""

    def total(self, weights, back):
        y = super().total(weights, back).astype(np.float32)
        return (y.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


class MaskAfter(Plan):
    """The weight of an empty slot is multiplied with 0, which a NaN survives."""

    def used(self, weights, kept):
        return wide(weights) * kept


class ReadsTail(Plan):
    """An empty slot reads the last row, unwritten memory, and multiplies it with 0."""

    def unpermute(self, rows, weights, experts, layout, x):
        back = wide(rows)[layout.row] if len(rows) else np.zeros((*layout.row.shape, x.shape[1]))
        return self.total(self.used(weights, layout.row >= 0), back).astype(x.dtype)


class OneHot(Plan):
    """Rows come back by a matrix product with zeros and ones, so a NaN reaches every token."""

    def total(self, weights, back):
        y = super().total(weights, back)
        return y + 0 * y.sum(axis=0, keepdims=True)


class LooseOrder(Plan):
    """The order of the sum changes from call to call."""

    calls = 0

    def total(self, weights, back):
        self.calls += 1
        order = np.roll(np.arange(back.shape[1]), self.calls)
        return super().total(weights[:, order], back[:, order])


class BatchOrder(Plan):
    """The order of the sum depends on how many tokens there are, though it says it does not."""

    def total(self, weights, back):
        order = np.roll(np.arange(back.shape[1]), len(back) // 24)
        return super().total(weights[:, order], back[:, order])


class HalfRows(Plan):
    """Rows of bfloat16 are read back as float16, which has not its range."""

    def unpermute(self, rows, weights, experts, layout, x):
        narrow = np.float16 if rows.dtype == ml_dtypes.bfloat16 else rows.dtype
        return super().unpermute(rows.astype(narrow), weights, experts, layout, x)


class HalfCotangents(Plan):
    """Cotangents of bfloat16 are read as float16."""

    def vjp(self, x, experts, num_experts, weights, scale, cotangent, capacity=None):
        narrow = np.float16 if cotangent.dtype == ml_dtypes.bfloat16 else cotangent.dtype
        cotangent = cotangent.astype(narrow)
        return super().vjp(x, experts, num_experts, weights, scale, cotangent, capacity)


MUTANTS: tuple[Mutant, ...] = (
    of_plan(WeightsUnmoved, "PLN-04", "PLN-05", "PLN-21", "PLN-28"),
    of_plan(Uniform, "PLN-04", "PLN-05", "PLN-24"),
    of_plan(OneChoice, "PLN-10", "PLN-12"),
    of_plan(TwoChoices, "PLN-04", "PLN-12", "PLN-28"),
    of_plan(Renormalizes, "PLN-04", "PLN-24", "PLN-25"),
    of_plan(Epsilon, "PLN-06"),
    of_plan(Negligible, "PLN-25"),
    of_plan(NarrowSum, "PLN-04", "PLN-16", seen="vllm-project/vllm#15045"),
    of_plan(NarrowWeights, "PLN-04", "PLN-06", seen="vllm-project/vllm#14027"),
    of_plan(Truncates, "PLN-04", "PLN-06"),
    of_plan(MaskAfter, "PLN-08"),
    of_plan(ReadsTail, "PLN-07", seen="vllm-project/vllm#47785"),
    of_plan(HalfRows, "PLN-19"),
    of_plan(HalfCotangents, "PLN-39"),
    of_plan(OneHot, "PLN-14"),
    of_plan(LooseOrder, "PLN-17"),
    of_plan(BatchOrder, "PLN-18", batch_invariant=True, seen="sgl-project/sglang#27869"),
)
