"""MX element formats as tables of values, and scale rules as tables of thresholds.

Written from the definitions with whole numbers and fractions: an element is found among all values
of its format, a scale among the magnitudes at which a rule takes the next one.
"""

import dataclasses
import functools
from fractions import Fraction

import numpy as np


@dataclasses.dataclass(frozen=True)
class Elements:
    """The non-negative numbers of a format, one for each code from 0 on.

    Args:
        units: the numbers, in units of the smallest one, increasing.
        unit: exponent of two of the smallest one.
        nan: the code NaN is written as; None if there is none.
        infinity: the code that means Inf; None if there is none.
        sign: what the code of the negative adds; 0 for two's complement of eight bits.
        mantissa: stored bits after the point.
    """

    units: np.ndarray
    unit: int
    nan: int | None
    infinity: int | None
    sign: int
    mantissa: int

    @property
    def largest(self) -> Fraction:
        """The largest number."""
        return int(self.units[-1]) * Fraction(2) ** self.unit

    @property
    def emax(self) -> int:
        """Exponent of the power of two at or below the largest number."""
        return int(self.units[-1]).bit_length() - 1 + self.unit


def _floats(exponents: int, mantissa: int, bias: int, count: int, **special) -> Elements:
    """The first `count` numbers of exponent and mantissa fields."""
    units = [
        m if e == 0 else ((1 << mantissa) + m) << (e - 1)
        for e in range(1 << exponents)
        for m in range(1 << mantissa)
    ]
    whole = {"nan": None, "infinity": None, "sign": 1 << (exponents + mantissa)} | special
    return Elements(
        np.array(units[:count], np.int64), 1 - bias - mantissa, mantissa=mantissa, **whole
    )


ELEMENTS = {
    "mxfp8_e4m3": _floats(4, 3, 7, 127, nan=0x7F),
    "mxfp8_e5m2": _floats(5, 2, 15, 124, nan=0x7F, infinity=0x7C),
    "mxfp6_e3m2": _floats(3, 2, 3, 32),
    "mxfp6_e2m3": _floats(2, 3, 1, 32),
    "mxfp4_e2m1": _floats(2, 1, 1, 8),
    "mxint8": Elements(np.arange(128), -6, None, None, 0, 6),
}


def _two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def _passes(rule: str, form: Elements, byte: int) -> tuple[Fraction, bool]:
    """The magnitude from which a rule gives at least `byte`, and whether that one is included."""
    below = byte - 128  # exponent of the scale that no longer does
    if rule == "floor":
        return _two(byte - 127 + form.emax), True
    if rule == "ceil":
        return _two(below + form.emax), False
    if rule == "rceil_real":
        return form.largest * _two(below), False
    if rule == "rceil":
        # A float32 quotient half a step above a power of two, ties to even, is that power.
        step = _two(max(below, -126) - 23)
        return form.largest * (_two(below) + step / 2), False
    if rule == "even":
        return _two(byte - 127 + form.emax) * (1 - _two(-form.mantissa - 2)), True
    raise KeyError(rule)


RULES = ("floor", "ceil", "rceil_real", "rceil", "even")


@functools.cache
def thresholds(format: str, rule: str) -> np.ndarray:
    """Entry b - 1: the first float32 pattern whose scale byte is at least b, for b up to 255."""
    form = ELEMENTS[format]
    return np.array([_first_pattern(*_passes(rule, form, b)) for b in range(1, 256)], np.int64)


@functools.cache
def overflow(format: str) -> int:
    """The first float32 pattern that `even` rounds to 2^128."""
    return _first_pattern(_two(128) * (1 - _two(-ELEMENTS[format].mantissa - 2)), True)


def _first_pattern(value: Fraction, included: bool) -> int:
    """The first pattern of a positive float32 at or above `value`, or only above it."""
    exponent = max(_floor_log2(value), -126)
    steps = value / _two(exponent - 23)
    first = -(-steps.numerator // steps.denominator)
    if not included and first == steps:
        first += 1
    # Patterns count float32 numbers, through powers of two and subnormals alike.
    return first + ((exponent + 126) << 23)


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if value >= _two(guess) else guess - 1


def numbers(form: Elements) -> np.ndarray:
    """The number of each code."""
    numbers = form.units * 2.0**form.unit
    if form.sign == 0:
        return np.concatenate([numbers, [-2.0], -numbers[:0:-1]])
    half = np.full(form.sign, np.nan)
    half[: len(numbers)] = numbers
    if form.infinity is not None:
        half[form.infinity] = np.inf
    return np.concatenate([half, -half])
