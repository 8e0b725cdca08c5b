"""Wrong grouped matmuls on MX operands: what is quantised along which axis, and how often."""

from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._grouped_mx_kernel import BLOCK, Kernel, mutants_in
from moe_ref.spec import MXSpec


class OnlyRows(Kernel):
    """The weights are multiplied in high precision."""

    killers = ("MXG-02", "MXG-31")

    def matrix(self, w, expert):
        return w[expert].astype(np.float32)

    def matrix_back(self, w, expert):
        return w[expert].astype(np.float32)


class OnlyWeights(Kernel):
    """The rows are multiplied in high precision."""

    killers = ("MXG-02", "MXG-31", "MXG-32")

    def rows(self, x):
        return x.astype(np.float32)

    def rows_back(self, dy):
        return dy.astype(np.float32)

    def column(self, a, start, stop):
        return a[start:stop]


class RowsAcross(Kernel):
    """Scales of x lie along its rows instead of along k."""

    killers = ("MXG-03", "MXG-04", "MXG-21", "MXG-22")

    def rows(self, x):
        return self.quantised(x, 0)


class WeightsAcross(Kernel):
    """Scales of w lie along n instead of along k: those that the gradient of x needs."""

    killers = ("MXG-03", "MXG-05")

    def matrix(self, w, expert):
        return self.quantised(w[expert], 1)


class QuantisedTwice(Kernel):
    """x is quantised along its rows, for the gradient, and what was written again along k."""

    killers = ("MXG-03", "MXG-04")

    def rows(self, x):
        return self.quantised(self.quantised(x, 0), 1)


class WeightsTwice(Kernel):
    """w is quantised along n, and what was written again along k."""

    killers = ("MXG-03", "MXG-05")

    def matrix(self, w, expert):
        return self.quantised(self.quantised(w[expert], 1), 0)


class NeighboursScales(Kernel):
    """The codes of an expert are read with the scales of the one before."""

    killers = ("MXG-02", "MXG-03", "MXG-12", "MXG-31", "MXG-43")

    def matrix(self, w, expert):
        return self._with_scales(w, expert, 0)

    def matrix_back(self, w, expert):
        return self._with_scales(w, expert, 1)

    def _with_scales(self, w, expert, axis):
        own, other = (np.moveaxis(w[e].astype(np.float32), axis, -1) for e in (expert, expert - 1))
        ratio = np.exp2(self._bytes(other) - self._bytes(own))
        read = self.along_last(own) * np.repeat(ratio, BLOCK, axis=-1)[..., : own.shape[-1]]
        return np.moveaxis(read.astype(np.float32), -1, axis)

    def _bytes(self, a):
        whole = np.pad(a, ((0, 0), (0, -a.shape[1] % BLOCK)))
        return self.byte(self.largest(whole.reshape(len(a), -1, BLOCK))).astype(np.float64)


class WeightsOfForward(Kernel):
    """The gradient of x multiplies the weights that the forward pass wrote, along k."""

    killers = ("MXG-33", "MXG-37", "MXG-52")

    def matrix_back(self, w, expert):
        return self.quantised(w[expert], 0)


class WeightsWrittenTwice(Kernel):
    """The gradient of x quantises, along n, the weights that the forward pass wrote along k."""

    killers = ("MXG-33",)

    def matrix_back(self, w, expert):
        return self.quantised(self.quantised(w[expert], 0), 1)


class CotangentAcross(Kernel):
    """For the gradient of x, scales of the cotangent lie along its rows instead of along n."""

    killers = ("MXG-33", "MXG-52", "MXG-72", "MXG-73")

    def rows_back(self, dy):
        return self.quantised(dy, 0)


class WideCotangent(Kernel):
    """The cotangent is not quantised for the gradient of x."""

    killers = ("MXG-31",)

    def rows_back(self, dy):
        return dy.astype(np.float32)


class OtherCotangent(Kernel):
    """The cotangent is written in E5M2, as FP8 recipes do, where E4M3 is declared for all."""

    killers = ("MXG-31", "MXG-52")

    def rows_back(self, dy):
        return _InE5M2().quantised(dy, 1)


class _InE5M2(Kernel):
    mx: ClassVar = MXSpec(format="mxfp8_e5m2")


class RowsOfForward(Kernel):
    """The gradient of w multiplies what the other passes wrote, which lies along k and n."""

    killers = ("MXG-34", "MXG-36", "MXG-44", "MXG-53")

    def column(self, a, start, stop):
        return a[start:stop]

    def source(self, a, quantised):
        return quantised(a)


class UndeclaredRequantizing(Kernel):
    """The gradient of w starts from what the other passes wrote, which is not declared."""

    killers = ("MXG-34", "MXG-44")
    mx: ClassVar = MXSpec(wgrad="requantize")
    declared: ClassVar = {"mx": MXSpec()}


class UndeclaredSource(Kernel):
    """The gradient of w starts from high precision, where requantizing is declared."""

    killers = ("MXG-34", "MXG-44")
    declared: ClassVar = {"mx": MXSpec(wgrad="requantize")}


class UndeclaredPrecision(Kernel):
    """The gradient of w multiplies operands in high precision, which is not declared."""

    killers = ("MXG-32", "MXG-34", "MXG-42")
    mx: ClassVar = MXSpec(wgrad="high_precision_matmul")
    declared: ClassVar = {"mx": MXSpec()}


class UndeclaredBlocks(Kernel):
    """The gradient of w has MX operands, where high precision is declared."""

    killers = ("MXG-32", "MXG-34", "MXG-53")
    declared: ClassVar = {"mx": MXSpec(wgrad="high_precision_matmul")}


class AcrossGroups(Kernel):
    """Blocks along the rows are cut from the first row of all, and hold rows of two groups."""

    killers = ("MXG-34", "MXG-38", "MXG-53", "MXG-71")
    seen = "NVIDIA/TransformerEngine#2966"

    def source(self, a, quantised):
        return self.quantised(a, 0)

    def column(self, a, start, stop):
        return a[start:stop]


class NeighboursRows(Kernel):
    """The last block of a group is filled up with the rows that follow, which count for its scale.

    In the tail they are of nobody.
    """

    killers = ("MXG-34", "MXG-46", "MXG-53")

    def column(self, a, start, stop):
        end = start - (start - stop) // BLOCK * BLOCK
        return self.quantised(a[start:end], 0)[: stop - start]


class LostRows(Kernel):
    """The rows of a group after its last whole block are not summed into dw."""

    killers = ("MXG-32", "MXG-34", "MXG-44")

    def column(self, a, start, stop):
        whole = (stop - start) // BLOCK * BLOCK
        return super().column(a, start, start + whole)


class UnalignedRows(Kernel):
    """The rows of a group are loaded from a multiple of 32 on, down from the first."""

    killers = ("MXG-32", "MXG-34", "MXG-72")
    seen = "marin-community/marin#8339"

    def column(self, a, start, stop):
        return super().column(a, start - start % BLOCK, stop - start % BLOCK)


class FloorOfGradients(Kernel):
    """Scales of the gradient's operands are rounded down, those of the forward pass up."""

    killers = ("MXG-31", "MXG-32", "MXG-52", "MXG-53")

    def for_x(self, x, w, groups, dy):
        return Kernel.for_x(_RoundedDown(), x, w, groups, dy)

    def for_w(self, x, w, groups, dy):
        return Kernel.for_w(_RoundedDown(), x, w, groups, dy)


class _RoundedDown(Kernel):
    mx: ClassVar = MXSpec(rule="floor")


MUTANTS = mutants_in(globals())
