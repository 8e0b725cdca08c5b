"""`grouped_matmul` in NumPy, right, in steps: a mutant replaces one of them."""

from typing import Any, ClassVar

import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._mutant import (
    Mutant,
    kernels_in,
    numpy_implementation,
    wrong_ones,
)

Groups = list[tuple[int, int, int]]  # expert, first row, row after the last


class Kernel:
    """Each group times the matrix of its expert, summed in float32 and rounded once."""

    killers: ClassVar[tuple[str, ...]] = ()
    seen: ClassVar[str] = ""
    declared: ClassVar[dict[str, Any]] = {}

    def value(self, x: np.ndarray, w: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
        """The result."""
        with np.errstate(all="ignore"):
            return self.forward(x, w, self.groups(group_sizes, x))

    def vjp(
        self, x: np.ndarray, w: np.ndarray, group_sizes: np.ndarray, cotangent: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The gradients of x and of w."""
        with np.errstate(all="ignore"):
            groups, dy = self.groups(group_sizes, x), self.read(cotangent)
            return self.for_x(x, w, groups, dy), self.for_w(x, w, groups, dy)

    def read(self, cotangent: np.ndarray) -> np.ndarray:
        """The cotangent as it is used."""
        return cotangent

    def groups(self, group_sizes: np.ndarray, x: np.ndarray) -> Groups:
        """Where each expert's rows lie."""
        ends = self.ends(group_sizes, x)
        starts = [0, *ends[:-1]]
        return [(e, *rows) for e, rows in enumerate(zip(starts, ends, strict=True))]

    def ends(self, group_sizes: np.ndarray, x: np.ndarray) -> list[int]:
        """The row after the last of each expert."""
        return np.cumsum(group_sizes.astype(np.int64)).tolist()

    def forward(self, x: np.ndarray, w: np.ndarray, groups: Groups) -> np.ndarray:
        """The result, from where the groups lie."""
        y = self.memory((len(x), w.shape[2]), x)
        for e, start, stop in filled(groups):
            y[start:stop] = self.narrow(self.rows(wide(x[start:stop]), wide(w[e]), e), x)
        return y

    def rows(self, x: np.ndarray, w: np.ndarray, expert: int) -> np.ndarray:
        """One group's rows of the result, before they are rounded."""
        return self.total(x, w)

    def for_x(self, x: np.ndarray, w: np.ndarray, groups: Groups, dy: np.ndarray) -> np.ndarray:
        """The gradient of x."""
        dx = self.memory(x.shape, x)
        for e, start, stop in filled(groups):
            back = self.rows_back(wide(dy[start:stop]), wide(w[e]), e)
            dx[start:stop] = self.narrow_back(back, x)
        return dx

    def rows_back(self, dy: np.ndarray, w: np.ndarray, expert: int) -> np.ndarray:
        """One group's rows of the gradient of x, before they are rounded."""
        return self.total(dy, w.T)

    def for_w(self, x: np.ndarray, w: np.ndarray, groups: Groups, dy: np.ndarray) -> np.ndarray:
        """The gradient of w."""
        dw = np.zeros(w.shape, w.dtype)
        for e, start, stop in filled(groups):
            own = self.weight(wide(x[start:stop]), wide(dy[start:stop]), e)
            dw[e] = self.narrow_back(own, w)
        return dw

    def weight(self, x: np.ndarray, dy: np.ndarray, expert: int) -> np.ndarray:
        """The gradient of one matrix, before it is rounded."""
        return self.total(x.T, dy)

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


def filled(groups: Groups) -> Groups:
    """Those that have rows."""
    return [group for group in groups if group[2] > group[1]]


def renumbered(groups: Groups) -> Groups:
    """The same rows for the experts in order."""
    return [(e, start, stop) for e, (_, start, stop) in enumerate(groups)]


def wide(array: np.ndarray) -> np.ndarray:
    """The array in float32, or in float64 if it is."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


def implementation_of(kernel: type[Kernel], **declared: Any) -> Implementation:
    """The implementation of a kernel's class, named after it."""
    name = f"grouped_matmul, {kernel.__name__}"
    fields = {"dtypes": ("float32", "bfloat16")} | kernel.declared | declared
    return numpy_implementation(name, "grouped_matmul", kernel(), **fields)


def mutants_in(module: dict[str, Any]) -> tuple[Mutant, ...]:
    """The wrong kernels of a module, in order."""
    return wrong_ones(kernels_in(module, Kernel), implementation_of)
