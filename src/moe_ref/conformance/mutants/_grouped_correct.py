"""Grouped matmuls that are right, each in its own legal way."""

import dataclasses
from typing import ClassVar

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import (
    Groups,
    Kernel,
    implementation_of,
)
from moe_ref.conformance.mutants._mutant import kernels_in
from moe_ref.spec import Numerics

_FLOAT32, _BFLOAT16 = Numerics.of("float32"), Numerics.of("bfloat16")


class Sequential(Kernel):
    """One product after the other; a row's bits depend on nothing else. The tail is zero."""

    declared: ClassVar = {"batch_invariant": True, "zero_tail": True}

    def memory(self, shape, x):
        return np.zeros(shape, x.dtype)

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), a.dtype)
        for column, row in zip(a.T, b, strict=True):
            sums += np.multiply.outer(column, row)
        return sums


class Reversed(Kernel):
    """The last product first."""

    def total(self, a, b):
        return a[:, ::-1] @ b[::-1]


class Blocked(Kernel):
    """Partial sums of 16 products."""

    def total(self, a, b):
        parts = (a[:, i : i + 16] @ b[i : i + 16] for i in range(0, a.shape[1], 16))
        return sum(parts, np.zeros((len(a), b.shape[1]), a.dtype))


class Pairwise(Kernel):
    """A tree of sums, over neighbours."""

    def total(self, a, b):
        sums = a.T[:, :, None] * b[:, None, :]
        while len(sums) > 1:
            odd = sums[len(sums) & ~1 :]
            sums = np.concatenate([sums[0 : len(sums) & ~1 : 2] + sums[1::2], odd])
        return sums.sum(axis=0)


class Tiled(Kernel):
    """Tiles of 16 rows and 32 columns, the last ones padded with zeros."""

    def total(self, a, b):
        left = np.pad(a, ((0, -len(a) % 16), (0, 0)))
        right = np.pad(b, ((0, 0), (0, -b.shape[1] % 32)))
        y = np.empty((len(left), right.shape[1]), a.dtype)
        for i in range(0, len(left), 16):
            for j in range(0, right.shape[1], 32):
                y[i : i + 16, j : j + 32] = left[i : i + 16] @ right[:, j : j + 32]
        return y[: len(a), : b.shape[1]]


class RoundedOnce(Kernel):
    """Sums in float64, as a long chain of fused operations would nearly give."""

    def total(self, a, b):
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


class AnyOrder(Kernel):
    """Parts of the sum arrive in an order that changes from run to run, and that is declared."""

    declared: ClassVar = {"deterministic": False}

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def total(self, a, b):
        order = self.rng.permutation(a.shape[1])
        return a[:, order] @ b[order]


class Double(Kernel):
    """Any dtype, float64 included."""

    declared: ClassVar = {"dtypes": ("float64", "float16")}


class Truncated(Kernel):
    """Sums of 16 products are added to the rest toward zero, and that is declared."""

    declared: ClassVar = {
        "numerics": {
            dtype: dataclasses.replace(Numerics.of(dtype), accumulate_rounding="toward_zero")
            for dtype in ("float32", "bfloat16")
        }
    }

    def total(self, a, b):
        sums = np.zeros((len(a), b.shape[1]), np.float32)
        for i in range(0, a.shape[1], 16):
            part = a[:, i : i + 16].astype(np.float64) @ b[i : i + 16].astype(np.float64)
            exact = sums + part
            sums = exact.astype(np.float32)
            away = np.abs(sums.astype(np.float64)) > np.abs(exact)
            sums = np.where(away, np.nextafter(sums, np.float32(0)), sums)
        return sums


class RoundedOperands(Kernel):
    """Operands are read in TF32, and that is declared."""

    declared: ClassVar = {
        "dtypes": ("float32",),
        "numerics": {"float32": dataclasses.replace(_FLOAT32, multiply="tf32")},
    }

    def total(self, a, b):
        return to_tf32(a) @ to_tf32(b)


def to_tf32(a: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest number with 11 significant bits, ties to even."""
    bits = a.view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return np.where(np.isfinite(a), (rounded & np.uint32(0xFFFFE000)).view(np.float32), a)


class RoundedCotangent(Kernel):
    """The cotangent is rounded to bfloat16 before it is used, and that is declared."""

    declared: ClassVar = {
        "dtypes": ("float32",),
        "numerics": {"float32": dataclasses.replace(_FLOAT32, cotangent="bfloat16")},
    }

    def read(self, cotangent):
        return cotangent.astype(ml_dtypes.bfloat16)


class WideResults(Kernel):
    """Results and gradients of bfloat16 operands stay in float32, and that is declared."""

    declared: ClassVar = {
        "dtypes": ("bfloat16",),
        "numerics": {
            "bfloat16": dataclasses.replace(
                _BFLOAT16, output="float32", cotangent="float32", gradient="float32"
            )
        },
    }

    def forward(self, x, w, groups: Groups):
        return super().forward(x.astype(np.float32), w.astype(np.float32), groups)

    def for_x(self, x, w, groups: Groups, dy):
        return super().for_x(x.astype(np.float32), w, groups, dy)

    def for_w(self, x, w, groups: Groups, dy):
        return super().for_w(x, w.astype(np.float32), groups, dy)


class WholeTiles(Kernel):
    """Takes only groups of whole tiles of 8 rows and matrices of 16 by 16, and at least one row."""

    declared: ClassVar = {"multiple_of": {"rows": 8, "k": 16, "n": 16}, "zero_rows": False}

    def forward(self, x, w, groups: Groups):
        assert len(x) > 0
        assert not any(size % 16 for size in w.shape[1:])
        assert not any(start % 8 or stop % 8 for _, start, stop in groups)
        return super().forward(x, w, groups)


class InputGradient(Kernel):
    """Has a gradient of x only."""

    declared: ClassVar = {"gradients": ("x",)}

    def vjp(self, x, w, group_sizes, cotangent):
        return super().vjp(x, w, group_sizes, cotangent)[:1]


CORRECT = tuple(map(implementation_of, (Kernel, *kernels_in(globals(), Kernel))))
