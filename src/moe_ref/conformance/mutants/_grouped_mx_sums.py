"""Wrong grouped matmuls on MX operands: sums, groups, tails and results."""

from typing import ClassVar

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import filled
from moe_ref.conformance.mutants._grouped_mx_correct import AnyOrder, Sequential, ShortSums
from moe_ref.conformance.mutants._grouped_mx_kernel import BLOCK, Kernel, mutants_in


def _to_bfloat16(a: np.ndarray) -> np.ndarray:
    return a.astype(ml_dtypes.bfloat16).astype(np.float32)


class NarrowSums(Kernel):
    """The sums of blocks are added up in bfloat16."""

    killers = ("MXG-02", "MXG-11", "MXG-20", "MXG-31", "MXG-32", "MXG-60", "MXG-61")

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), np.float32)
        for i in range(0, a.shape[1], BLOCK):
            sums = _to_bfloat16(sums + a[:, i : i + BLOCK] @ b[i : i + BLOCK])
        return sums


class UndeclaredShortSums(ShortSums):
    """After 32 products the running sum is cut to 14 bits, which is not declared."""

    killers = ("MXG-02", "MXG-20", "MXG-31", "MXG-32", "MXG-60", "MXG-61")
    declared: ClassVar = {}


class NarrowResult(Kernel):
    """Results pass through bfloat16, whatever their dtype."""

    killers = ("MXG-02", "MXG-31", "MXG-32")

    def narrow(self, sums, like):
        return _to_bfloat16(sums).astype(like.dtype)


class UndeclaredOrder(AnyOrder):
    """Parts of a sum are added in the order in which they arrive, which is not declared."""

    killers = ("MXG-19", "MXG-58")
    declared: ClassVar = {}


class PlaceInBatch(Sequential):
    """Bits are declared to depend on the row alone, and the order of a sum on where it lies."""

    killers = ("MXG-25", "MXG-75")

    def total(self, a, b):
        every = np.stack([super().total(a, b), super().total(a[:, ::-1], b[::-1])])
        return every[np.arange(len(a)) % 2, np.arange(len(a))]


class WideResult(Kernel):
    """The sums are handed out without being rounded to x's dtype."""

    killers = ("MXG-01",)

    def value(self, x, w, group_sizes):
        return super().value(x.astype(np.float32), w, group_sizes)


class WideDw(Kernel):
    """The gradient of bfloat16 weights is handed out in float32, which is not declared."""

    killers = ("MXG-59",)

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w.astype(np.float32), groups, dy)


class FirstRow(Kernel):
    """The first row has neither a result nor a gradient."""

    killers = ("MXG-02", "MXG-13", "MXG-21", "MXG-22", "MXG-23", "MXG-31", "MXG-71", "MXG-73")

    def forward(self, x, w, groups):
        y = super().forward(x, w, groups)
        y[:1] = 0
        return y

    def for_x(self, x, w, groups, dy):
        dx = super().for_x(x, w, groups, dy)
        dx[:1] = 0
        return dx


class OneOfEmpty(Kernel):
    """Where all groups but one are empty, the first of them gets the rows."""

    killers = ("MXG-06", "MXG-35", "MXG-36")

    def groups(self, group_sizes, x):
        groups = super().groups(group_sizes, x)
        used = filled(groups)
        if len(used) != 1 or len(groups) == 1:
            return groups
        return [(0, *used[0][1:]), *((e, 0, 0) for e in range(1, len(groups)))]


class SmallBatch(Kernel):
    """A batch smaller than a tile of 16 rows is not multiplied."""

    killers = ("MXG-13",)

    def forward(self, x, w, groups):
        return super().forward(x * (len(x) >= 16), w, groups)


class OneRowAtLeast(Kernel):
    """The result has at least one row."""

    killers = ("MXG-14",)

    def memory(self, shape, x):
        return super().memory((max(shape[0], 1), shape[1]), x)


class ThreeStepsOfSums(Kernel):
    """Of a sum, the terms past 384 are dropped."""

    killers = ("MXG-11", "MXG-41")

    def total(self, a, b):
        return super().total(a[:, :384], b[:384])


class OneTileOfRows(Kernel):
    """The gradient of a weight is summed over the first 128 rows of its group alone."""

    killers = ("MXG-36", "MXG-42")

    def column(self, a, start, stop):
        return super().column(a, start, min(stop, start + 128))


class FiveBitsOfExpert(Kernel):
    """The number of an expert has five bits."""

    killers = ("MXG-12", "MXG-43")

    def matrix(self, w, expert):
        return super().matrix(w, expert % 32)

    def matrix_back(self, w, expert):
        return super().matrix_back(w, expert % 32)


class ThirtyTwoDw(Kernel):
    """The experts from number 32 on get no weight gradient."""

    killers = ("MXG-44",)

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w, groups[:32], dy)


class TailInLastGroup(Kernel):
    """The last group with rows reaches to the end of x."""

    killers = ("MXG-32", "MXG-46")
    seen = "pytorch/torchtitan#1237"

    def groups(self, group_sizes, x):
        groups = super().groups(group_sizes, x)
        for e, start, _ in filled(groups)[-1:]:
            groups[e] = (e, start, len(x))
        return groups


class TailInBlock(Kernel):
    """Rows after the last group are multiplied by zero, not left out."""

    killers = ("MXG-46",)

    def column(self, a, start, stop):
        end = min(len(a), start - (start - stop) // BLOCK * BLOCK)
        own = super().column(a, start, stop)
        return np.concatenate([own, 0 * a[stop:end].astype(np.float32)])


class TailIntoRows(Kernel):
    """The sum of the tail is subtracted from it to get zeros, and reaches every row."""

    killers = ("MXG-15", "MXG-45")

    def rows(self, x):
        return super().rows(x) + _of_tail(x)

    def rows_back(self, dy):
        return super().rows_back(dy) + _of_tail(dy)


def _of_tail(a: np.ndarray) -> np.ndarray:
    last = a[-1:].astype(np.float32)
    return last - last


class UnwrittenTail(Kernel):
    """Zeros are declared in the tail, and nothing is written there."""

    killers = ("MXG-16", "MXG-57")
    declared: ClassVar = {"zero_tail": True}


class ClippedCotangent(Kernel):
    """Cotangents are clipped to [-2, 2]."""

    killers = ("MXG-31", "MXG-32", "MXG-74")

    def vjp(self, x, w, group_sizes, cotangent):
        limit = np.asarray(2, cotangent.dtype)
        return super().vjp(x, w, group_sizes, np.clip(cotangent, -limit, limit))


class StaleDw(Kernel):
    """An empty group has the weight gradient of the group before: a buffer is not cleared."""

    killers = ("MXG-56",)
    seen = "openxla/tokamax#887"

    def for_w(self, x, w, groups, dy):
        dw = super().for_w(x, w, groups, dy)
        for e, start, stop in groups[1:]:
            if start == stop:
                dw[e] = dw[e - 1]
        return dw


class UnwrittenDw(Kernel):
    """The weight gradient of an empty group is never written."""

    killers = ("MXG-32", "MXG-36", "MXG-56")
    seen = "meta-pytorch/MSLK#158"

    def for_w(self, x, w, groups, dy):
        dw = super().for_w(x, w, groups, dy)
        dw[[e for e, start, stop in groups if start == stop]] = np.nan
        return dw


class NeighboursDw(Kernel):
    """Each expert gets the weight gradient of the one before it."""

    killers = ("MXG-32", "MXG-44", "MXG-71")

    def for_w(self, x, w, groups, dy):
        return np.roll(super().for_w(x, w, groups, dy), 1, axis=0)


class PoisonFromIdle(Kernel):
    """The weight gradient is added to zero times the weight."""

    killers = ("MXG-50", "MXG-56")

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w, groups, dy) + (0 * w.astype(np.float32)).astype(w.dtype)


MUTANTS = mutants_in(globals())
