"""Wrong grouped matmuls: tiles, integer types and the form of operands and results."""

import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import Kernel, mutants_in


class WholeTilesOnly(Kernel):
    """The rows of a group after its last whole tile of 32 are not written."""

    killers = ("GRP-02", "GRP-06", "GRP-27")

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        y[len(x) // 32 * 32 :] = 0
        return y


class WholeColumnsOnly(Kernel):
    """The columns after the last whole tile of 16 repeat those of the tile before."""

    killers = ("GRP-02", "GRP-06")
    seen = "marin-community/marin#7484"

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        rest = y.shape[1] % 16
        if rest:
            y[:, -rest:] = y[:, :rest]
        return y


class OverhangingColumns(Kernel):
    """What the last tile of 16 columns has beyond n is stored in the row after."""

    killers = ("GRP-02", "GRP-06")
    seen = "huggingface/kernels-community#1153"

    def forward(self, x, w, groups):
        y = super().forward(x, w, groups)
        y[1:, : -y.shape[1] % 16] = 0
        return y


class WholeDepthOnly(Kernel):
    """What is left of k after the last whole tile of 32 is not multiplied."""

    killers = ("GRP-02", "GRP-06")
    seen = "AI-Hypercomputer/maxtext#1183"

    def rows(self, x, w, expert):
        k = x.shape[1] // 32 * 32
        return super().rows(x[:, :k], w[:k], expert)


class OddRows(Kernel):
    """Rows are loaded in pairs: the last of an odd number in a group takes part twice."""

    killers = ("GRP-02", "GRP-06", "GRP-27")
    seen = "tenstorrent/tt-metal#50669"

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        if len(x) % 2:
            y[-1] += y[-1]
        return y


class SmallBatch(Kernel):
    """A batch smaller than a tile of 16 rows takes a path that leaves out the last product."""

    killers = ("GRP-27",)

    def forward(self, x, w, groups):
        if 0 < len(x) < 16:
            return super().forward(x[:, :-1], w[:, :-1], groups)
        return super().forward(x, w, groups)


class EmptyBatch(Kernel):
    """A batch without rows gives one row, as a grid of at least one tile."""

    killers = ("GRP-05",)

    def memory(self, shape, x):
        return super().memory((max(shape[0], 1), shape[1]), x)


class NarrowOffsets(Kernel):
    """Offsets are kept in the integer type of the sizes, which wraps around."""

    killers = ("GRP-14",)

    def ends(self, group_sizes, x):
        return np.cumsum(group_sizes, dtype=group_sizes.dtype).tolist()


class FloatOffsets(Kernel):
    """Rows are counted in the dtype of x, which has few integers if it is bfloat16."""

    killers = ("GRP-02", "GRP-06")

    def ends(self, group_sizes, x):
        ends = np.asarray(super().ends(group_sizes, x)).astype(x.dtype).astype(np.int64)
        return np.minimum(ends, len(x)).tolist()


class ShortRowNumbers(Kernel):
    """Row numbers are kept in 16 bits, which wrap around."""

    killers = ("GRP-28",)
    seen = "ml-explore/mlx#3856"

    def ends(self, group_sizes, x):
        return np.asarray(super().ends(group_sizes, x)).astype(np.int16).tolist()


class SquareTransposed(Kernel):
    """Which side of a weight is k is guessed from its shape, and a square one is transposed."""

    killers = ("GRP-07", "GRP-13")
    seen = "huggingface/transformers#47031"

    def rows(self, x, w, expert):
        return super().rows(x, w.T if w.shape[0] == w.shape[1] else w, expert)


class WideResult(Kernel):
    """The sums are handed out without being rounded to x's dtype."""

    killers = ("GRP-01",)

    def value(self, x, w, group_sizes):
        return super().value(x.astype(np.float32), w, group_sizes)


class WidenedBySizes(Kernel):
    """Sizes of 64 bits widen the result."""

    killers = ("GRP-29",)

    def value(self, x, w, group_sizes):
        y = super().value(x, w, group_sizes)
        return y.astype(np.float64) if group_sizes.dtype == np.int64 else y


class ThreeStepsOfSums(Kernel):
    """Of a sum, the terms past 384 are dropped."""

    killers = ("GRP-02",)

    def rows(self, x, w, expert):
        return super().rows(x[:, :384], w[:384], expert)


class ThirdTileOfColumns(Kernel):
    """The third tile of 128 columns is the first again."""

    killers = ("GRP-02",)

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        y[:, 256:384] = y[:, : y[:, 256:384].shape[1]]
        return y


class NarrowMatrixPositive(Kernel):
    """A path for matrices of one row or column knows no negative numbers."""

    killers = ("GRP-06", "GRP-33", "GRP-34")

    def rows(self, x, w, expert):
        return self._rectified(super().rows(x, w, expert), w)

    def rows_back(self, dy, w, expert):
        return self._rectified(super().rows_back(dy, w, expert), w)

    def weight(self, x, dy, expert):
        dw = super().weight(x, dy, expert)
        return self._rectified(dw, dw)

    def _rectified(self, sums, matrix):
        return np.maximum(sums, 0) if 1 in matrix.shape else sums


class DwOfFourTiles(Kernel):
    """The gradient of a weight is summed over the first 512 rows of its group alone."""

    killers = ("GRP-32",)

    def weight(self, x, dy, expert):
        return super().weight(x[:512], dy[:512], expert)


class NineBitsOfExpert(Kernel):
    """The number of an expert has nine bits."""

    killers = ("GRP-07",)

    def forward(self, x, w, groups):
        return super().forward(x, w[np.arange(len(w)) % 512], groups)


MUTANTS = mutants_in(globals())
