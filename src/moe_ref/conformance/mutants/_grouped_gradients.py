"""Grouped matmuls that are right in value and wrong in gradient."""

import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import Kernel, filled, mutants_in, renumbered
from moe_ref.conformance.mutants._grouped_precision import to_bfloat16


class NoDx(Kernel):
    """x gets no gradient."""

    killers = ("GRP-31", "GRP-33", "GRP-57", "GRP-59")

    def rows_back(self, dy, w, expert):
        return 0 * super().rows_back(dy, w, expert)


class NoDw(Kernel):
    """The weights get no gradient."""

    killers = ("GRP-32", "GRP-34", "GRP-58", "GRP-60")

    def weight(self, x, dy, expert):
        return 0 * super().weight(x, dy, expert)


class TwiceDw(Kernel):
    """The gradient of the weights is twice as large as it should be."""

    killers = ("GRP-32", "GRP-34", "GRP-46")

    def weight(self, x, dy, expert):
        return 2 * super().weight(x, dy, expert)


class MeanDw(Kernel):
    """The gradient of a weight is the mean over its rows instead of their sum."""

    killers = ("GRP-32", "GRP-46")

    def weight(self, x, dy, expert):
        return super().weight(x, dy, expert) / np.float32(len(x))


class StaleDw(Kernel):
    """An empty group has the weight gradient of the group before: a buffer is not cleared."""

    killers = ("GRP-35", "GRP-54", "GRP-55")
    seen = "openxla/tokamax#887"

    def for_w(self, x, w, groups, dy):
        dw = super().for_w(x, w, groups, dy)
        for e, start, stop in groups[1:]:
            if start == stop:
                dw[e] = dw[e - 1]
        return dw


class UnwrittenDw(Kernel):
    """The weight gradient of an empty group is never written."""

    killers = ("GRP-32", "GRP-35", "GRP-55")
    seen = "meta-pytorch/MSLK#158"

    def for_w(self, x, w, groups, dy):
        dw = super().for_w(x, w, groups, dy)
        dw[[e for e, start, stop in groups if start == stop]] = np.nan
        return dw


class NeighboursDw(Kernel):
    """Each expert gets the weight gradient of the one before it."""

    killers = ("GRP-32", "GRP-53")

    def for_w(self, x, w, groups, dy):
        return np.roll(super().for_w(x, w, groups, dy), 1, axis=0)


class FilledDw(Kernel):
    """Weight gradients are stored for groups that have rows, one after the other."""

    killers = ("GRP-32", "GRP-35", "GRP-55")

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w, renumbered(filled(groups)), dy)


class UntransposedDx(Kernel):
    """The weight is transposed for dx only if its shape shows that it has to be."""

    killers = ("GRP-31",)

    def rows_back(self, dy, w, expert):
        return super().rows_back(dy, w.T if w.shape[0] == w.shape[1] else w, expert)


class WholeTilesOfDw(Kernel):
    """The rows of a group after its last whole tile of 32 are not summed into dw."""

    killers = ("GRP-32", "GRP-34", "GRP-58")

    def weight(self, x, dy, expert):
        rows = len(x) // 32 * 32
        return super().weight(x[:rows], dy[:rows], expert)


class LastTileOfDw(Kernel):
    """Each tile of 32 rows stores its part of dw instead of adding it."""

    killers = ("GRP-32", "GRP-34")

    def weight(self, x, dy, expert):
        rows = (len(x) - 1) // 32 * 32
        return super().weight(x[rows:], dy[rows:], expert)


class UnalignedDw(Kernel):
    """The rows that are summed into dw are loaded from a multiple of 8 on, down from the first."""

    killers = ("GRP-32", "GRP-34", "GRP-54")
    seen = "marin-community/marin#8339"

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w, [(e, a - a % 8, b - a % 8) for e, a, b in groups], dy)


class FirstBlockOfDx(Kernel):
    """Only the first 64 rows get a gradient."""

    killers = ("GRP-31", "GRP-33")

    def for_x(self, x, w, groups, dy):
        dx = super().for_x(x, w, groups, dy)
        dx[64:] = 0
        return dx


class FirstRowOfDx(Kernel):
    """The first row gets no gradient."""

    killers = ("GRP-31", "GRP-33", "GRP-56", "GRP-57", "GRP-64")

    def for_x(self, x, w, groups, dy):
        dx = super().for_x(x, w, groups, dy)
        dx[:1] = 0
        return dx


class SmallBatchOfDw(Kernel):
    """A batch smaller than a tile of 16 rows gets no weight gradient."""

    killers = ("GRP-58",)

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w, groups, dy * (len(x) >= 16))


class NarrowDw(Kernel):
    """Parts of dw from 16 rows each are added up in bfloat16."""

    killers = ("GRP-32", "GRP-44", "GRP-60")

    def weight(self, x, dy, expert):
        sums = np.zeros((x.shape[1], dy.shape[1]), np.float32)
        for i in range(0, len(x), 16):
            sums = to_bfloat16(sums + x[i : i + 16].T @ dy[i : i + 16]).astype(np.float32)
        return sums


class WideDw(Kernel):
    """The gradient of bfloat16 weights is handed out in float32, which is not declared."""

    killers = ("GRP-62",)

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w.astype(np.float32), groups, dy)


class ClippedCotangent(Kernel):
    """Cotangents are clipped to [-2, 2]."""

    killers = ("GRP-31", "GRP-32", "GRP-52")

    def read(self, cotangent):
        limit = np.asarray(2, cotangent.dtype)
        return np.clip(cotangent, -limit, limit)


class ShortenedCotangent(Kernel):
    """The cotangent is scaled so that its root mean square is at most 1/2."""

    killers = ("GRP-31", "GRP-32", "GRP-51", "GRP-52")

    def read(self, cotangent):
        size = np.sqrt(np.mean(cotangent.astype(np.float32) ** 2))
        factor = min(1.0, 0.5 / size) if size > 0 else 1.0
        return cotangent * np.asarray(factor, cotangent.dtype)


MUTANTS = mutants_in(globals())
