"""Wrong grouped matmuls: NaN, Inf or the tail reach what does not depend on them."""

from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import Kernel, mutants_in, wide


class MaskedDense(Kernel):
    """Every expert on every row, times a mask of 0 and 1: 0 * NaN is NaN."""

    killers = ("GRP-11", "GRP-41")

    def forward(self, x, w, groups):
        products = (mask * self.total(wide(x), wide(w[e])) for e, mask in _masks(groups, x))
        return self.narrow(np.sum(list(products), axis=0), x)

    def for_x(self, x, w, groups, dy):
        products = (mask * self.total(wide(dy), wide(w[e]).T) for e, mask in _masks(groups, x))
        return self.narrow(np.sum(list(products), axis=0), x)


class MaskedOperand(Kernel):
    """One dense matmul over all experts, with x masked: a NaN in one weight reaches every row."""

    killers = ("GRP-11", "GRP-37", "GRP-39")

    def forward(self, x, w, groups):
        products = (self.total(mask * wide(x), wide(w[e])) for e, mask in _masks(groups, x))
        return self.narrow(np.sum(list(products), axis=0), x)

    def for_w(self, x, w, groups, dy):
        own = [self.total((mask * wide(x)).T, wide(dy)) for _, mask in _masks(groups, x)]
        return self.narrow_back(np.stack(own), w)


def _masks(groups, x):
    rows = np.arange(len(x))[:, None]
    return ((e, wide(((rows >= a) & (rows < b)).astype(x.dtype))) for e, a, b in groups)


class TailInResult(Kernel):
    """Something that all rows take part in is multiplied with 0 and added to every result."""

    killers = ("GRP-08", "GRP-10")
    seen = "huggingface/transformers#45621"

    def forward(self, x, w, groups):
        return super().forward(x, w, groups) + 0 * np.sum(x, dtype=x.dtype)


class ScaleOfTheTail(Kernel):
    """x is scaled by its largest magnitude, which is looked for in the tail too."""

    killers = ("GRP-08",)

    def forward(self, x, w, groups):
        scale = np.exp2(np.floor(np.log2(np.max(np.abs(wide(x)), initial=1))))
        scaled = np.rint(wide(x) / scale * 2**24) / 2**24 * scale
        return super().forward(scaled.astype(x.dtype), w, groups)


class RowSpreads(Kernel):
    """A tile of 16 rows is scaled by its largest magnitude: one NaN row makes it NaN."""

    killers = ("GRP-10",)

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        for i in range(0, len(x), 16):
            y[i : i + 16] += 0 * np.max(x[i : i + 16])
        return y


class SwallowsNan(Kernel):
    """NaN and Inf in x are replaced by numbers."""

    killers = ("GRP-10",)

    def forward(self, x, w, groups):
        return super().forward(np.nan_to_num(wide(x)).astype(x.dtype), w, groups)


class IdleWeights(Kernel):
    """The mean weight of all experts, idle ones included, is multiplied with 0 and added."""

    killers = ("GRP-11",)

    def forward(self, x, w, groups):
        return super().forward(x, w + 0 * np.sum(w, axis=0, dtype=w.dtype), groups)


class UnwrittenTail(Kernel):
    """The tail keeps what was in memory, though it is declared to be zero."""

    killers = ("GRP-09", "GRP-38")
    seen = "huggingface/transformers#48205"
    declared: ClassVar = {"zero_tail": True}


class TailInLastGroup(Kernel):
    """The last group goes on to the end of the buffer, so the tail is summed into its dw."""

    killers = ("GRP-37",)
    seen = "NVIDIA/TransformerEngine#3484"

    def for_w(self, x, w, groups, dy):
        last, start, _ = groups[-1]
        return super().for_w(x, w, [*groups[:-1], (last, start, len(x))], dy)


class TailInDx(Kernel):
    """Something that all cotangents take part in is multiplied with 0 and added to dx."""

    killers = ("GRP-36", "GRP-40")

    def for_x(self, x, w, groups, dy):
        return super().for_x(x, w, groups, dy) + 0 * np.sum(dy, dtype=x.dtype)


class WeightsInDw(Kernel):
    """The weight is multiplied with 0 and added to its gradient."""

    killers = ("GRP-35", "GRP-42")

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w, groups, dy) + 0 * w


class WeightsInDx(Kernel):
    """A NaN in any weight makes the gradient of x NaN, as a check for overflow would."""

    killers = ("GRP-41",)

    def for_x(self, x, w, groups, dy):
        return super().for_x(x, w, groups, dy) + 0 * np.sum(w, dtype=w.dtype)


MUTANTS = mutants_in(globals())
