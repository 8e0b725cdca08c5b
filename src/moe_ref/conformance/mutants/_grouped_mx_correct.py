"""Grouped matmuls on MX operands that are right, each in its own legal way."""

import dataclasses
from typing import ClassVar

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._grouped_mx_kernel import BLOCK, Kernel, implementation_of
from moe_ref.conformance.mutants._mutant import kernels_in
from moe_ref.spec import MXSpec, Numerics

_DTYPES = ("float32", "bfloat16")
_WIDE = Numerics.of("float32")


def _numerics(**changes) -> dict[str, Numerics]:
    """As moe_ref's own, in which operands and sums are float32, with changes."""
    return {
        dtype: dataclasses.replace(_WIDE, **({"output": dtype, "gradient": dtype} | changes))
        for dtype in _DTYPES
    }


class Sequential(Kernel):
    """One product after the other; a row's bits depend on nothing else. The tail is zero."""

    declared: ClassVar = {"batch_invariant": True, "zero_tail": True}

    def memory(self, shape, x):
        return np.zeros(shape, x.dtype)

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), np.float32)
        for column, row in zip(a.T, b, strict=True):
            sums += np.multiply.outer(column, row)
        return sums


class Reversed(Kernel):
    """The last product first."""

    def total(self, a, b):
        return a[:, ::-1] @ b[::-1]


class ScaledSums(Kernel):
    """Codes are summed block by block, and each sum is scaled by the product of two scales."""

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), np.float32)
        for i in range(0, a.shape[1], BLOCK):
            left, right = a[:, i : i + BLOCK], b[i : i + BLOCK]
            rows, columns = _scale(left, 1), _scale(right, 0)
            part = (left / rows).astype(np.float32) @ (right / columns).astype(np.float32)
            sums = (sums + part * (rows * columns)).astype(np.float32)
        return sums


def _scale(a: np.ndarray, axis: int) -> np.ndarray:
    """A power of two for each block, that leaves numbers of a format's size."""
    exponent = np.frexp(np.abs(a).max(axis, keepdims=True))[1].astype(np.float64)
    return np.where(np.isfinite(exponent), np.exp2(exponent), 1.0)


class Narrow(Kernel):
    """What is read from E4M3 blocks is multiplied in bfloat16, which holds it."""

    def blocks(self, blocks):
        return super().blocks(blocks).astype(ml_dtypes.bfloat16).astype(np.float32)


class Tiled(Kernel):
    """Tiles of 16 rows and 32 columns, the last ones padded with zeros."""

    def total(self, a, b):
        left = np.pad(a, ((0, -len(a) % 16), (0, 0)))
        right = np.pad(b, ((0, 0), (0, -b.shape[1] % 32)))
        y = np.empty((len(left), right.shape[1]), np.float32)
        for i in range(0, len(left), 16):
            for j in range(0, right.shape[1], 32):
                y[i : i + 16, j : j + 32] = left[i : i + 16] @ right[:, j : j + 32]
        return y[: len(a), : b.shape[1]]


class AnyOrder(Kernel):
    """Parts of the sum arrive in an order that changes from run to run, and that is declared."""

    declared: ClassVar = {"deterministic": False}

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def total(self, a, b):
        order = self.rng.permutation(a.shape[1])
        return a[:, order] @ b[order]


class Requantized(Kernel):
    """The weight gradient starts from what the other passes wrote, and that is declared."""

    mx = MXSpec(wgrad="requantize")


class WideWeights(Kernel):
    """The weight gradient multiplies operands in high precision, and that is declared."""

    mx = MXSpec(wgrad="high_precision_matmul")


class Floor(Kernel):
    """The scale is OCP's, under which the largest value of a block may saturate."""

    mx = MXSpec(rule="floor")


class WideExponents(Kernel):
    """E5M2, whose scales are rounded up to a power of two."""

    mx = MXSpec(format="mxfp8_e5m2", rule="ceil")


class FourBits(Kernel):
    """E2M1, whose scales are rounded to the nearest exponent; in half precision too."""

    mx = MXSpec(format="mxfp4_e2m1", rule="even")
    declared: ClassVar = {"dtypes": (*_DTYPES, "float16")}


class WholeNumbers(Kernel):
    """MXINT8, from float16 alone."""

    mx = MXSpec(format="mxint8", rule="floor")
    declared: ClassVar = {"dtypes": ("float16",)}


class NanAlone(Kernel):
    """NaN and Inf as in Transformer Engine."""

    mx = MXSpec(nonfinite="te")


class ShortSums(Kernel):
    """After 32 products the running sum is cut to 14 bits, and that is declared."""

    declared: ClassVar = {
        "numerics": _numerics(accumulate="e8m13", accumulate_rounding="toward_zero")
    }

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), np.float32)
        for i in range(0, a.shape[1], BLOCK):
            sums = _cut(sums + a[:, i : i + BLOCK] @ b[i : i + BLOCK])
        return sums


def _cut(sums: np.ndarray) -> np.ndarray:
    """Drop all but 14 significant bits."""
    return (sums.view(np.uint32) & np.uint32(0xFFFFFC00)).view(np.float32)


class WideResults(Kernel):
    """Results and gradients of bfloat16 operands stay in float32, and that is declared."""

    declared: ClassVar = {"dtypes": ("bfloat16",), "numerics": {"bfloat16": _WIDE}}

    def narrow(self, sums, like):
        return sums

    def memory(self, shape, x):
        return super().memory(shape, np.zeros(0, np.float32))

    def for_w(self, x, w, groups, dy):
        return super().for_w(x, w.astype(np.float32), groups, dy)


class WholeBlocks(Kernel):
    """Takes only groups and matrices of whole blocks, and at least one row."""

    declared: ClassVar = {
        "multiple_of": {"rows": BLOCK, "k": BLOCK, "n": BLOCK},
        "zero_rows": False,
    }

    def forward(self, x, w, groups):
        assert len(x) > 0
        assert not any(size % BLOCK for size in w.shape[1:])
        assert not any(start % BLOCK or stop % BLOCK for _, start, stop in groups)
        return super().forward(x, w, groups)


class InputGradient(Kernel):
    """Has a gradient of x only."""

    declared: ClassVar = {"gradients": ("x",)}

    def vjp(self, x, w, group_sizes, cotangent):
        return super().vjp(x, w, group_sizes, cotangent)[:1]


CORRECT = tuple(map(implementation_of, (Kernel, *kernels_in(globals(), Kernel))))
