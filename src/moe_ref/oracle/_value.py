r"""A number together with how far correct rounding may move it.

Errors are of two kinds. A *systematic* error of size $m$ adds linearly; *independent* zero-mean
errors of scale $s$ add in quadrature, and their sum stays below $\lambda s$ but for a chance too
small to meet, $\lambda = 6$. So each number has two bounds: `worst`, carried along linearly
everywhere and exceeded by no correct computation, and `bound`, the smaller of its own linear
propagation and $m + \lambda s$, exceeded with near certainty by none.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from moe_ref.oracle._formats import UNIT, Format, coarser

LAMBDA = 6.0


@dataclasses.dataclass(frozen=True)
class Value:
    r"""An array of numbers with their bounds, all float64 and of one shape.

    Args:
        value: $v$, computed in float64.
        bound: $b$; a correct kernel's result $y$ has $|y - v| \le b$ with near certainty. It is
            inf where nothing can be said: after an overflow, or where `value` is not finite.
        worst: the bound that holds whatever the data; beyond it a result is proven wrong.
        systematic: $m$, the part of the error that adds linearly.
        independent: $s$, the scale of the part that adds in quadrature.
        variance: predicted variance of the error; not a bound, but what statistics compare with.
    """

    value: np.ndarray
    bound: np.ndarray
    worst: np.ndarray
    systematic: np.ndarray
    independent: np.ndarray
    variance: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        return self.value.shape

    @property
    def size(self) -> np.ndarray:
        r"""$\hat a = |v| + b$: the largest magnitude a kernel's number may have."""
        return np.abs(self.value) + self.bound

    @property
    def largest(self) -> np.ndarray:
        """The same for the worst case."""
        return np.abs(self.value) + self.worst

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Value":
        """Rearrange: apply a selection, transposition or reshaping to each of the six arrays."""
        return Value(*(function(getattr(self, f.name)) for f in dataclasses.fields(self)))

    def __getitem__(self, index) -> "Value":
        return self.map(lambda array: array[index])

    @property
    def transposed(self) -> "Value":
        """The transpose."""
        return self.map(np.transpose)


def exact(value: np.ndarray) -> Value:
    """Numbers known exactly; their zero bounds take no memory."""
    nothing = np.broadcast_to(np.float64(0.0), value.shape)
    return Value(value, nothing, nothing, nothing, nothing, nothing)


def zeros(*shape: int) -> Value:
    """Exact zeros to `put` parts into."""
    return exact(np.zeros(shape)).map(np.array)


def put(whole: Value, where: Any, part: Value) -> None:
    """Write a part of an array of numbers: `whole[where] = part`."""
    for field in dataclasses.fields(Value):
        getattr(whole, field.name)[where] = getattr(part, field.name)


def bounded(
    value: np.ndarray,
    linear: np.ndarray,
    worst: np.ndarray,
    systematic: np.ndarray,
    independent: np.ndarray,
    variance: np.ndarray,
) -> Value:
    r"""Numbers whose bound is $\min(\text{linear}, m + \lambda s)$."""
    bound = np.minimum(linear, systematic + LAMBDA * independent)
    return Value(value, bound, worst, systematic, independent, variance)


def correlated(value: np.ndarray, bound: np.ndarray, worst: np.ndarray) -> Value:
    """Numbers whose errors may all point the same way, so that they only ever add linearly."""
    variance = (bound / LAMBDA) ** 2 / 3
    return Value(value, bound, worst, bound, np.broadcast_to(0.0, value.shape), variance)


def constant(number: float, shape: tuple[int, ...], format: Format) -> Value:
    """A constant of the spec, which the kernel may have rounded to its format."""
    value = np.full(shape, number)
    lost = np.full(shape, format.misses(number))
    return correlated(value, lost, lost)


def given(value: np.ndarray, format: Format) -> Value:
    """Inputs: exact, but for subnormal ones that the kernel may read as zero."""
    known = exact(value)
    if not format.flushes:
        return known
    size = np.abs(value)
    lost = np.where(size < format.smallest_normal, size, 0.0)
    return correlated(value, lost, lost) if lost.any() else known


def rounded(x: Value, format: Format) -> Value:
    r"""Round once: half an ulp at $|v| + b$, independent of every other rounding.

    A number that is known exactly and representable stays as it is.
    """
    fits = format.nearest(x.value) == x.value
    half, flushed = _step(x.value, x.bound, fits, format)
    worst_half, worst_flushed = _step(x.value, x.worst, fits, format)
    return bounded(
        x.value,
        x.bound + half + flushed,
        x.worst + worst_half + worst_flushed,
        x.systematic + flushed,
        np.hypot(x.independent, half),
        x.variance + half**2 / 3,
    )


def _step(
    value: np.ndarray, error: np.ndarray, fits: np.ndarray, format: Format
) -> tuple[np.ndarray, np.ndarray]:
    """Half an ulp, and what flushing may take."""
    known, size = fits & (error == 0), np.abs(value)
    half = np.where(known, 0.0, format.half_ulp(size + error) + UNIT * size)
    small = ~known & (size - error < format.smallest_normal)
    return half, np.where(small & format.flushes, format.eta, 0.0)


def narrowed(x: Value, format: Format, current: Format) -> Value:
    """Round to `format` unless numbers of `current` already are of it."""
    return rounded(x, format) if coarser(format, current) is not current else x


def scattered(x: Value, rows: np.ndarray, length: int, empty_bound: float = 0.0) -> Value:
    """Rows put where they belong among `length` rows; the others are 0 with their own bound."""

    def spread(part, fill=0.0):
        full = np.full((length, *part.shape[1:]), fill)
        full[rows] = part
        return full

    whole = x.map(spread)
    bound, worst = (spread(part, empty_bound) for part in (x.bound, x.worst))
    return dataclasses.replace(whole, bound=bound, worst=worst)


def concatenated(parts: list[Value], axis: int = 0) -> Value:
    """Several arrays of numbers as one."""
    names = [field.name for field in dataclasses.fields(Value)]
    joined = {n: np.concatenate([getattr(p, n) for p in parts], axis=axis) for n in names}
    return Value(**joined)


def settled(x: Value) -> Value:
    """The result for the user: where nothing can be said, the bounds are inf and never NaN."""
    finite = np.isfinite(x.value)
    bound, worst = (
        np.where(finite & np.isfinite(error), error, np.inf) for error in (x.bound, x.worst)
    )
    return dataclasses.replace(x, bound=bound, worst=worst)
