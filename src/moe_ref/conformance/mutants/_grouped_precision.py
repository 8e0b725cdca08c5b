"""Wrong grouped matmuls: sums, operands or results are less exact than declared."""

from typing import ClassVar

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._grouped_correct import (
    AnyOrder,
    RoundedOperands,
    Truncated,
    to_tf32,
)
from moe_ref.conformance.mutants._grouped_kernel import Kernel, mutants_in


class NarrowSums(Kernel):
    """The running sum is kept in bfloat16."""

    killers = ("GRP-02", "GRP-16", "GRP-31", "GRP-32")

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), ml_dtypes.bfloat16)
        for column, row in zip(a.T, b, strict=True):
            sums = to_bfloat16(sums.astype(np.float32) + np.multiply.outer(column, row))
        return sums.astype(np.float32)


class NarrowParts(Kernel):
    """The two halves of a split sum are stored in bfloat16 before they are added."""

    killers = ("GRP-02", "GRP-16", "GRP-19", "GRP-43", "GRP-44")

    def total(self, a, b):
        half = (a.shape[1] + 1) // 2
        parts = (to_bfloat16(a[:, :half] @ b[:half]), to_bfloat16(a[:, half:] @ b[half:]))
        return sum(part.astype(np.float32) for part in parts)


class ShortSums(Kernel):
    """After 16 products the running sum is cut to 14 bits, as FP8 matrix units do."""

    killers = ("GRP-02", "GRP-16", "GRP-18", "GRP-43", "GRP-44")

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), np.float32)
        for i in range(0, a.shape[1], 16):
            sums = cut(sums + a[:, i : i + 16] @ b[i : i + 16], bits=14)
        return sums


class UndeclaredTruncation(Truncated):
    """Sums are truncated toward zero, which is not declared."""

    killers = ("GRP-17", "GRP-18", "GRP-45", "GRP-46", "GRP-47", "GRP-48")
    declared: ClassVar = {}


class UndeclaredOperands(RoundedOperands):
    """float32 operands are read in TF32, which is not declared."""

    killers = ("GRP-02", "GRP-16", "GRP-43", "GRP-44")
    declared: ClassVar = {"dtypes": ("float32",)}


class UndeclaredOrder(AnyOrder):
    """Parts of a sum are added in the order in which they arrive, which is not declared."""

    killers = ("GRP-15", "GRP-61")
    declared: ClassVar = {}


class TwoPartOperands(Kernel):
    """float32 operands are split in two bfloat16 numbers, which hold 16 bits."""

    killers = ("GRP-16", "GRP-43", "GRP-44")

    def total(self, a, b):
        return _two_parts(a) @ _two_parts(b)


class NarrowResult(Kernel):
    """Results pass through bfloat16, whatever their dtype."""

    killers = ("GRP-02", "GRP-16", "GRP-31", "GRP-32")

    def narrow(self, sums, like):
        return to_bfloat16(sums).astype(like.dtype)


class TruncatedResult(Kernel):
    """bfloat16 results are the upper half of the float32 sum, without rounding."""

    killers = ("GRP-02", "GRP-18", "GRP-19", "GRP-47", "GRP-48", "GRP-49", "GRP-50")

    def narrow(self, sums, like):
        return (cut(sums, bits=8) if like.dtype == ml_dtypes.bfloat16 else sums).astype(like.dtype)


class RoundedTwice(Kernel):
    """Results are rounded to 11 bits before they are rounded to bfloat16."""

    killers = ("GRP-19", "GRP-49", "GRP-50")

    def narrow(self, sums, like):
        narrow = like.dtype == ml_dtypes.bfloat16
        return (to_tf32(sums) if narrow else sums).astype(like.dtype)


class OnePercent(Kernel):
    """The results of one expert are 1 % too large."""

    killers = ("GRP-02", "GRP-17")
    excess = 1e-2

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        return y * np.float32(1 + self.excess) if expert == 2 else y


class OneThousandth(OnePercent):
    """The results of one expert are 0.1 % too large."""

    killers = ("GRP-02", "GRP-17")
    excess = 1e-3


class OneUlp(OnePercent):
    """The results of one expert are one unit in the last place of float32 too large."""

    killers = ("GRP-17",)
    excess = 2.0**-23


class OneUlpBack(Kernel):
    """The gradients of one expert are one unit in the last place of float32 too large."""

    killers = ("GRP-45", "GRP-46")

    def rows_back(self, dy, w, expert):
        return super().rows_back(dy, w, expert) * np.float32(1 + 2.0**-23 * (expert == 2))

    def weight(self, x, dy, expert):
        return super().weight(x, dy, expert) * np.float32(1 + 2.0**-23 * (expert == 2))


class LostProduct(Kernel):
    """The loop over k ends one early."""

    killers = ("GRP-02", "GRP-13", "GRP-31", "GRP-32")

    def total(self, a, b):
        return a[:, :-1] @ b[:-1]


class Epsilon(Kernel):
    """1e-6 is added to every result."""

    killers = ("GRP-16", "GRP-26")

    def rows(self, x, w, expert):
        return super().rows(x, w, expert) + np.float32(1e-6)


class SmallIsZero(Kernel):
    """Results below 1e-4 are taken for zero, as a tolerance would."""

    killers = ("GRP-12", "GRP-30")

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        return np.where(np.abs(y) < 1e-4, 0, y)


class OneScale(Kernel):
    """x is read as 16-bit integers with one scale for all its rows."""

    killers = ("GRP-30",)

    def forward(self, x, w, groups):
        return super().forward(quantized(x), w, groups)


class OneScaleBack(Kernel):
    """The cotangent is read as 16-bit integers with one scale for all its rows."""

    killers = ("GRP-59", "GRP-60")

    def read(self, cotangent):
        return quantized(cotangent)


def to_bfloat16(a: np.ndarray) -> np.ndarray:
    """The nearest bfloat16."""
    return a.astype(ml_dtypes.bfloat16)


def cut(a: np.ndarray, *, bits: int) -> np.ndarray:
    """float32 toward zero with that many significant bits."""
    mask = np.uint32((0xFFFFFFFF << (24 - bits)) & 0xFFFFFFFF)
    return np.where(np.isfinite(a), (a.view(np.uint32) & mask).view(np.float32), a)


def quantized(x: np.ndarray) -> np.ndarray:
    """Multiples of the largest magnitude over 2^15."""
    step = np.max(np.abs(x.astype(np.float32)), initial=0) / 2**15
    return (np.rint(x.astype(np.float32) / step) * step).astype(x.dtype)


def _two_parts(a: np.ndarray) -> np.ndarray:
    high = to_bfloat16(a).astype(np.float32)
    return high + to_bfloat16(a - high).astype(np.float32)


MUTANTS = mutants_in(globals())
