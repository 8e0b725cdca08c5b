"""`grouped_matmul_mx` in NumPy, right, in steps: a mutant replaces one of them."""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._grouped_kernel import Groups, filled
from moe_ref.conformance.mutants._mutant import (
    Mutant,
    kernels_in,
    numpy_implementation,
    wrong_ones,
)
from moe_ref.spec import MXSpec

OP = "grouped_matmul_mx"
BLOCK = 32


class Elements(NamedTuple):
    """Stored mantissa bits, exponents of the smallest normal and the largest number, the latter."""

    mantissa: int
    smallest: int
    emax: int
    largest: float


FORMATS = {
    "mxfp8_e4m3": Elements(3, -6, 8, 448.0),
    "mxfp8_e5m2": Elements(2, -14, 15, 57344.0),
    "mxfp6_e3m2": Elements(2, -2, 4, 28.0),
    "mxfp6_e2m3": Elements(3, 0, 2, 7.5),
    "mxfp4_e2m1": Elements(1, 0, 2, 6.0),
    "mxint8": Elements(6, 0, 0, 127 / 64),
}


class Kernel:
    """Each group times the matrix of its expert, all in MX blocks, summed in float32."""

    killers: ClassVar[tuple[str, ...]] = ()
    seen: ClassVar[str] = ""
    declared: ClassVar[dict[str, Any]] = {}
    mx: ClassVar[MXSpec] = MXSpec()

    def value(self, x: np.ndarray, w: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
        """The result."""
        with np.errstate(all="ignore"):
            return self.forward(x, w, self.groups(group_sizes, x))

    def vjp(
        self, x: np.ndarray, w: np.ndarray, group_sizes: np.ndarray, cotangent: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The gradients of x and of w."""
        with np.errstate(all="ignore"):
            groups = self.groups(group_sizes, x)
            return self.for_x(x, w, groups, cotangent), self.for_w(x, w, groups, cotangent)

    def groups(self, group_sizes: np.ndarray, x: np.ndarray) -> Groups:
        """Where each expert's rows lie."""
        ends = np.cumsum(group_sizes.astype(np.int64)).tolist()
        return [(e, *rows) for e, rows in enumerate(zip([0, *ends[:-1]], ends, strict=True))]

    def forward(self, x: np.ndarray, w: np.ndarray, groups: Groups) -> np.ndarray:
        """The result, from where the groups lie."""
        y, rows = self.memory((len(x), w.shape[2]), x), self.rows(x)
        for e, start, stop in filled(groups):
            y[start:stop] = self.narrow(self.total(rows[start:stop], self.matrix(w, e)), x)
        return y

    def rows(self, x: np.ndarray) -> np.ndarray:
        """The rows of x as the forward pass multiplies them."""
        return self.quantised(x, 1)

    def matrix(self, w: np.ndarray, expert: int) -> np.ndarray:
        """An expert's matrix as the forward pass multiplies it."""
        return self.quantised(w[expert], 0)

    def for_x(self, x: np.ndarray, w: np.ndarray, groups: Groups, dy: np.ndarray) -> np.ndarray:
        """The gradient of x."""
        dx, rows = self.memory(x.shape, x), self.rows_back(dy)
        for e, start, stop in filled(groups):
            back = self.total(rows[start:stop], self.matrix_back(w, e).T)
            dx[start:stop] = self.narrow_back(back, x)
        return dx

    def rows_back(self, dy: np.ndarray) -> np.ndarray:
        """The rows of the cotangent as the gradient of x multiplies them."""
        return self.quantised(dy, 1)

    def matrix_back(self, w: np.ndarray, expert: int) -> np.ndarray:
        """An expert's matrix as the gradient of x multiplies it, not transposed."""
        return self.quantised(w[expert], 1)

    def for_w(self, x: np.ndarray, w: np.ndarray, groups: Groups, dy: np.ndarray) -> np.ndarray:
        """The gradient of w."""
        dw = np.zeros(w.shape, w.dtype)
        left, right = self.source(x, self.rows), self.source(dy, self.rows_back)
        for e, start, stop in filled(groups):
            own = self.total(self.column(left, start, stop).T, self.column(right, start, stop))
            dw[e] = self.narrow_back(own, w)
        return dw

    def source(self, a: np.ndarray, quantised: Any) -> np.ndarray:
        """What the operands of dw are made of: rows, or rows that have been quantised."""
        return quantised(a) if self.mx.wgrad == "requantize" else a.astype(np.float32)

    def column(self, a: np.ndarray, start: int, stop: int) -> np.ndarray:
        """A group's rows of an operand of dw."""
        if self.mx.wgrad == "high_precision_matmul":
            return a[start:stop]
        return self.quantised(a[start:stop], 0)

    def quantised(self, a: np.ndarray, axis: int) -> np.ndarray:
        """Write in blocks along an axis and read again, in float32."""
        moved = np.moveaxis(a.astype(np.float32), axis, -1)
        return np.moveaxis(self.along_last(moved), -1, axis)

    def along_last(self, a: np.ndarray) -> np.ndarray:
        """The same along the last axis, the last block filled up with zeros."""
        length = a.shape[-1]
        whole = np.pad(a, ((0, 0),) * (a.ndim - 1) + ((0, -length % BLOCK),))
        read = self.blocks(whole.reshape(*a.shape[:-1], whole.shape[-1] // BLOCK, BLOCK))
        return read.reshape(whole.shape)[..., :length]

    def blocks(self, blocks: np.ndarray) -> np.ndarray:
        """The same of whole blocks, which fill the last axis."""
        byte = self.byte(self.largest(blocks))[..., None]
        factor = self.factor(byte)
        read = self.element(blocks / np.exp2(byte - 127.0)) * factor
        return self.marked(read, blocks).astype(np.float32)

    def largest(self, blocks: np.ndarray) -> np.ndarray:
        """The largest magnitude of each block; Inf where there is a NaN or Inf."""
        sizes = np.abs(blocks)
        if self.mx.nonfinite == "te":
            return np.where(np.isnan(sizes), 0, sizes).max(-1)
        return np.where(np.isnan(sizes), np.inf, sizes).max(-1)

    def byte(self, largest: np.ndarray) -> np.ndarray:
        """The scale bytes."""
        finite = np.where(np.isfinite(largest), largest, 1).astype(np.float32)
        byte = np.clip(self.exponent(finite) + 127, 0, 254)
        byte = np.where(finite == 0, 0, byte)
        return np.where(np.isfinite(largest), byte, 254)

    def exponent(self, largest: np.ndarray) -> np.ndarray:
        """The exponents of the scales of blocks that are not zero."""
        form = FORMATS[self.mx.format]
        if self.mx.rule == "rceil":
            return _ceil_log2(largest / np.float32(form.largest))
        if self.mx.rule == "ceil":
            return _ceil_log2(largest) - form.emax
        if self.mx.rule == "even":  # half a step of the format's mantissa, added before the floor
            whole = largest.view(np.uint32).astype(np.int64) + (1 << (22 - form.mantissa))
            largest = np.minimum(whole, 0x7F7FFFFF).astype(np.uint32).view(np.float32)
        return np.frexp(largest)[1].astype(np.int64) - 1 - form.emax

    def factor(self, byte: np.ndarray) -> np.ndarray:
        """The scales that bytes mean."""
        return np.exp2(byte - 127.0)

    def element(self, values: np.ndarray) -> np.ndarray:
        """The nearest numbers of the format, ties to even."""
        form = FORMATS[self.mx.format]
        exponent = np.maximum(np.frexp(np.abs(values))[1] - 1, form.smallest)
        step = np.exp2((exponent - form.mantissa).astype(np.float64))
        return np.clip(self.rounded(values / step) * step, -form.largest, form.largest)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Whole numbers."""
        return np.rint(values)

    def marked(self, read: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """NaN in blocks that hold a NaN or Inf, as the policy says."""
        bad = ~np.isfinite(blocks)
        if self.mx.nonfinite == "te":
            return np.where(np.isnan(blocks), np.nan, read)
        return np.where(bad.any(-1, keepdims=True), np.nan, read)

    def total(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Sums of products in float32."""
        return a @ b

    def memory(self, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
        """What is there before anything is written; nothing but the tail keeps it."""
        return np.full(shape, np.nan, x.dtype)

    def narrow(self, sums: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Round results."""
        return sums.astype(like.dtype)

    def narrow_back(self, sums: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Round gradients."""
        return self.narrow(sums, like)


def _ceil_log2(values: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(values)  # in [1/2, 1)
    return exponent.astype(np.int64) - (mantissa == 0.5)


def implementation_of(kernel: type[Kernel]) -> Implementation:
    """The implementation of a kernel's class, named after it."""
    name = f"{OP}, {kernel.__name__}"
    fields = {"mx": kernel.mx} | kernel.declared
    return numpy_implementation(name, OP, kernel(), **fields)


def mutants_in(module: dict[str, Any]) -> tuple[Mutant, ...]:
    """The wrong kernels of a module, in order."""
    return wrong_ones(kernels_in(module, Kernel), implementation_of)
