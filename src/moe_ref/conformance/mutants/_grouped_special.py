"""Wrong grouped matmuls: shapes, sizes and numbers that are taken for special ones."""

import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import Kernel, mutants_in


class OneColumnTwice(Kernel):
    """A single column of results is added twice."""

    killers = ("GRP-06",)

    def rows(self, x, w, expert):
        return super().rows(x, w, expert) * (2 if w.shape[1] == 1 else 1)


class EvenGroups(Kernel):
    """Groups of one size are taken for equal parts of all rows, the tail among them."""

    killers = ("GRP-04", "GRP-31", "GRP-32")

    def ends(self, group_sizes, x):
        sizes = group_sizes
        if len(sizes) > 1 and (sizes == sizes[0]).all():
            sizes = np.full(len(sizes), len(x) // len(sizes))
        return super().ends(sizes, x)


class NanFillsRow(Kernel):
    """A row of results with a NaN is NaN."""

    killers = ("GRP-11",)

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        return np.where(np.isnan(y).any(axis=1, keepdims=True), np.nan, y)


class NanFillsRowOfGradient(Kernel):
    """A row of the gradient of x with a NaN is NaN."""

    killers = ("GRP-41",)

    def rows_back(self, dy, w, expert):
        dx = super().rows_back(dy, w, expert)
        return np.where(np.isnan(dx).any(axis=1, keepdims=True), np.nan, dx)


class NanFillsMatrix(Kernel):
    """The gradient of a matrix with a NaN is NaN."""

    killers = ("GRP-39",)

    def weight(self, x, dy, expert):
        dw = super().weight(x, dy, expert)
        return np.full_like(dw, np.nan) if np.isnan(dw).any() else dw


class ZeroRowsSkipped(Kernel):
    """Rows of zeros are not multiplied, with a NaN neither."""

    killers = ("GRP-11",)

    def rows(self, x, w, expert):
        return np.where((x == 0).all(axis=1, keepdims=True), 0, super().rows(x, w, expert))


class LongSumsCut(Kernel):
    """Terms of a sum from the 2049th on are lost."""

    killers = ("GRP-02", "GRP-31")

    def total(self, a, b):
        return super().total(a[:, :2048], b[:2048])


MUTANTS = mutants_in(globals())
