"""Floating-point formats: how far apart their numbers lie."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require, require_choice
from moe_ref.spec import Numerics

UNIT = 2.0**-53  # of float64, in which the oracle itself computes


@dataclasses.dataclass(frozen=True)
class Format:
    r"""A binary format with `bits` significant bits.

    Args:
        bits: significant bits, the implicit one included.
        min_exponent: exponent of the smallest normal number.
        max: the largest finite number.
        flushes: subnormal numbers may become zero.
    """

    bits: int
    min_exponent: int
    max: float
    flushes: bool = False

    @property
    def unit(self) -> float:
        r"""The unit roundoff $u = 2^{-\mathrm{bits}}$."""
        return 2.0**-self.bits

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all its bits."""
        return 2.0**self.min_exponent

    @property
    def eta(self) -> float:
        """Absolute error near zero: the smallest normal if flushing, else half a subnormal."""
        return 2.0 ** (self.min_exponent - (0 if self.flushes else self.bits))

    def half_ulp(self, size: np.ndarray) -> np.ndarray:
        """Half the distance between neighbours at `size`, which is at least 0; inf beyond `max`.

        Example:
            ```python
            assert FORMATS["float32"].half_ulp(np.array([1.0])) == 2.0**-24
            ```
        """
        exponent = np.frexp(size)[1].astype(np.int64)  # size = m 2^exponent, m in [1/2, 1)
        exponent = np.where(size == 0, self.min_exponent, exponent)
        half = np.ldexp(1.0, np.maximum(exponent, self.min_exponent + 1) - self.bits - 1)
        return np.where(size <= self.max, half, np.inf)

    def nearest(self, values: np.ndarray) -> np.ndarray:
        """The nearest numbers of the format, ties to even; inf beyond `max`, NaN stays."""
        if self.bits == 53:
            return values
        step = 2 * self.half_ulp(np.minimum(np.abs(values), self.max))
        rounded = np.rint(values / step) * step
        return np.where(np.abs(rounded) > self.max, np.copysign(np.inf, rounded), rounded)

    def misses(self, number: float) -> float:
        """How far the nearest number of the format is from `number`."""
        return abs(float(self.nearest(np.array([number]))[0]) - number)


FORMATS = {
    "bfloat16": Format(8, -126, 2.0**128 * (1 - 2.0**-8)),
    "float16": Format(11, -14, 65504.0),
    "float32": Format(24, -126, 2.0**128 * (1 - 2.0**-24)),
    "tf32": Format(11, -126, 2.0**128 * (1 - 2.0**-11)),
    "e8m13": Format(14, -126, 2.0**128 * (1 - 2.0**-14)),
    "float64": Format(53, -1022, float(np.finfo(np.float64).max)),
}


class Formats:
    """The `Format` of each stage that a `Numerics` names: `Formats(numerics).hidden`."""

    def __init__(self, numerics: Numerics):
        require(isinstance(numerics, Numerics), "numerics", "a Numerics", repr(numerics))
        self.numerics = numerics
        self.truncates = numerics.accumulate_rounding == "toward_zero"

    def __getattr__(self, stage: str) -> Format:
        name = getattr(self.numerics, stage)
        # Hardware and XLA compute float16 in float32, where its subnormals are normal numbers.
        flushes = self.numerics.flushes_subnormals and name != "float16"
        return dataclasses.replace(FORMATS[name], flushes=flushes)


# The others exist inside a matrix unit only.
_STORED = tuple(name for name in FORMATS if name not in ("tf32", "e8m13"))


def coarser(a: Format, b: Format) -> Format:
    """The one with fewer significant bits."""
    return a if a.bits < b.bits else b


def finer(a: Format, b: Format) -> Format:
    """The one with more significant bits."""
    return a if a.bits > b.bits else b


def dtype_name(array: Any, argument: str) -> str:
    """The name of an array's dtype, one of those a `Numerics` knows.

    Raises:
        ValueError: another dtype.
    """
    dtype = getattr(array, "dtype", None)
    name = getattr(dtype, "name", None) or np.asarray(array).dtype.name
    require_choice(name, f"{argument}.dtype", _STORED)
    return name
