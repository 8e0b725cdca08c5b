"""Wrong gradients of `plan`."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._plan_kernel import Plan, wide
from moe_ref.conformance.mutants._plan_rows import of_plan


class EmptyGradient(Plan):
    """Empty slots have the gradient of the last expert."""

    def moved(self, layout, experts):
        return np.ones(experts.shape, bool)


class EmptyWeightCounts(Plan):
    """The gradient of an empty slot is multiplied with 0, which a NaN weight survives."""

    def onto_tokens(self, dy, weights, factor, kept):
        return super().onto_tokens(dy, weights, factor, np.ones_like(kept))

    def used(self, weights, kept):
        return wide(weights) * kept


class LastCopy(Plan):
    """`dx[token] += copies` keeps one copy of each token."""

    def onto_tokens(self, dy, weights, factor, kept):
        token, slot = np.nonzero(kept)
        dx = np.zeros_like(dy)
        dx[token] = (weights * factor)[token, slot, None] * dy[token]
        return dx


class OncePerExpert(Plan):
    """The gradients of two copies at one expert are added once."""

    def onto_tokens(self, dy, weights, factor, kept):
        same = (factor[:, :, None] == factor[:, None, :]).argmax(axis=2)
        return super().onto_tokens(dy, weights, factor, kept & (same == np.arange(kept.shape[1])))


class Unweighted(Plan):
    """The gradient of x lacks the weights."""

    def onto_tokens(self, dy, weights, factor, kept):
        return super().onto_tokens(dy, np.ones_like(weights), factor, kept)


class MeanOfCopies(Plan):
    """The gradient of x is the mean over slots instead of their sum."""

    def onto_tokens(self, dy, weights, factor, kept):
        return super().onto_tokens(dy, weights, factor, kept) / kept.shape[1]


class NarrowCopies(Plan):
    """The gradients of a token's copies are added in bfloat16."""

    def total(self, weights, back):
        y = np.zeros((len(back), back.shape[2]), np.float32)
        for slot in range(back.shape[1]):
            y = wide((y + weights[:, slot, None] * back[:, slot]).astype(ml_dtypes.bfloat16))
        return y

    def unpermute(self, rows, weights, experts, layout, x):
        kept = layout.row >= 0
        back = np.zeros((*kept.shape, rows.shape[1]), np.float32)
        back[kept] = rows[layout.row[kept]]
        return super().total(self.used(weights, kept), back).astype(x.dtype)


class OneHotBack(Plan):
    """The gradient of x is a product with a matrix of zeros and ones: a NaN reaches all of it."""

    def onto_tokens(self, dy, weights, factor, kept):
        dx = super().onto_tokens(dy, weights, factor, kept)
        return dx + 0 * dy.sum(axis=0, keepdims=True)


class RowsBefore(Plan):
    """The gradient of the weights multiplies the rows as they were before the experts."""

    def along(self, dy, x, factor, kept):
        return super().along(dy, x, np.ones_like(factor), kept)


class Spread(Plan):
    """The gradient of the weights is the same for all slots of a token."""

    def along(self, dy, x, factor, kept):
        found = super().along(dy, x, factor, kept)
        mean = found.sum(axis=1, keepdims=True) / np.maximum(kept.sum(axis=1, keepdims=True), 1)
        return np.where(kept, mean, 0)


class InRowOrder(Plan):
    """The gradient of the weights stays in the order of the rows."""

    def vjp(self, x, experts, num_experts, weights, scale, cotangent, capacity=None):
        dx, dw = super().vjp(x, experts, num_experts, weights, scale, cotangent, capacity)
        row = self.layout(experts, num_experts, capacity).row
        moved = np.zeros_like(dw)
        token, slot = np.nonzero(row >= 0)
        moved.reshape(-1)[row[token, slot]] = dw[token, slot]
        return dx, moved


class TokenBefore(Plan):
    """The gradient of the weights takes the cotangent of the token before."""

    def along(self, dy, x, factor, kept):
        return super().along(np.roll(dy, 1, axis=0), x, factor, kept)


class Unsigned(Plan):
    """The gradient of the weights adds products without their signs."""

    def along(self, dy, x, factor, kept):
        return super().along(np.abs(dy), np.abs(x), factor, kept)


class ZeroIsEmpty(Plan):
    """A filled slot of weight 0 is taken for an empty one: its weight has gradient 0."""

    def vjp(self, x, experts, num_experts, weights, scale, cotangent, capacity=None):
        dx, dw = super().vjp(x, experts, num_experts, weights, scale, cotangent, capacity)
        return dx, np.where(weights == 0, 0, dw).astype(dw.dtype)


MUTANTS: tuple[Mutant, ...] = tuple(
    of_plan(kernel, *killers, seen=seen)
    for kernel, killers, seen in (
        (EmptyGradient, ("PLN-34", "PLN-35"), "vllm-project/vllm#46408"),
        (EmptyWeightCounts, ("PLN-35",), "huggingface/transformers#45621"),
        (LastCopy, ("PLN-31", "PLN-33", "PLN-37", "PLN-38"), ""),
        (OncePerExpert, ("PLN-31", "PLN-33", "PLN-38"), ""),
        (Unweighted, ("PLN-31", "PLN-33", "PLN-38"), ""),
        (MeanOfCopies, ("PLN-31", "PLN-33", "PLN-38"), ""),
        (NarrowCopies, ("PLN-31",), ""),
        (OneHotBack, ("PLN-36",), ""),
        (RowsBefore, ("PLN-32", "PLN-33", "PLN-38"), ""),
        (Spread, ("PLN-32", "PLN-33"), ""),
        (InRowOrder, ("PLN-32", "PLN-33", "PLN-37"), ""),
        (TokenBefore, ("PLN-32", "PLN-36", "PLN-38"), ""),
        (Unsigned, ("PLN-32", "PLN-33", "PLN-38"), ""),
        (ZeroIsEmpty, ("PLN-32",), ""),
    )
)
