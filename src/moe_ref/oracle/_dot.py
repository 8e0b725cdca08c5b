r"""Sums of products, whatever their order, tree, blocking or use of fused multiply-add.

For n terms with unit roundoff u the rounding errors are at most $\gamma \sum |a||w|$ with

$$\gamma_w = \frac{n u}{1 - n u}, \qquad
\gamma_p = \exp\!\Big(\lambda \sqrt n\,u + \frac{n u^2}{1-u}\Big) - 1,$$

the worst case and the probabilistic bound of Higham and Mary (2019). Earlier errors of the operands
pass through in quadrature. Where the data have too little entropy, or the accumulator truncates,
only the worst case counts. The oracle's own float64 sum is bounded by the same rule.
"""

import dataclasses
import math

import numpy as np

from moe_ref.oracle._entropy import coherence, low_entropy, low_entropy_rows, sums_exactly
from moe_ref.oracle._formats import UNIT, Format, Formats
from moe_ref.oracle._value import LAMBDA, Value, bounded, rounded


def gamma_worst(n: int, unit: float) -> float:
    r"""$n u / (1 - n u)$; inf where the sum is too long for its format."""
    return n * unit / (1 - n * unit) if n * unit < 1 else math.inf


def gamma_likely(n: int, unit: float) -> float:
    r"""The smaller of the worst case and the probabilistic bound, which loses below n = 36."""
    likely = math.expm1(min(700.0, LAMBDA * math.sqrt(n) * unit + n * unit**2 / (1 - unit)))
    return min(gamma_worst(n, unit), likely)


@dataclasses.dataclass(frozen=True)
class _Terms:
    """Sums over the terms of each result, before the error of adding them up."""

    value: np.ndarray
    mass: np.ndarray  # sum of |a||w|, with the bounds inside
    worst_mass: np.ndarray
    squares: np.ndarray  # sum of (a w)^2
    linear: np.ndarray
    worst: np.ndarray
    systematic: np.ndarray
    independent_squared: np.ndarray
    variance: np.ndarray


def dot(
    a: Value,
    w: Value,
    formats: Formats,
    *,
    bias: Value | None = None,
    accumulate: Format | None = None,
    onward: bool = False,
) -> Value:
    r"""$a w + \mathrm{bias}$, left in the accumulator's format.

    Args:
        a: [rows, n].
        w: [n, columns].
        formats: of the kernel.
        bias: [columns] or None; one more term of every sum.
        accumulate: another format of the running sum.
        onward: the results are summed again, and with them the errors of `a` that they share.

    Returns:
        [rows, columns].
    """
    a, w = _read(a, formats), _read(w, formats)
    absolute, n = np.abs(w.value), a.shape[1]
    shared = coherence(w.value) if onward and a.independent.any() else 1.0
    terms = _Terms(
        value=a.value @ w.value,
        mass=_product(a.size, w.size),
        worst_mass=_product(a.largest, w.largest),
        squares=_product(a.value**2, w.value**2),
        linear=_product(a.bound, absolute) + _product(a.size, w.bound),
        worst=_product(a.worst, absolute) + _product(a.largest, w.worst),
        systematic=_product(a.systematic, w.size) + _product(a.size, w.systematic),
        independent_squared=_product((shared * a.independent) ** 2, w.size**2)
        + _product(a.size**2, w.independent**2),
        variance=_product(a.variance, w.value**2) + _product(a.value**2, w.variance),
    )
    format = accumulate or formats.accumulate
    guard = low_entropy(a.value, w.value)
    if bias is not None:
        return _accumulated(_with_bias(terms, bias), n + 1, format, formats, guard)
    certain = not (a.worst.any() or w.worst.any())
    still = sums_exactly(a.value, w.value, terms.mass, format) if certain else terms.mass == 0
    return _accumulated(terms, n, format, formats, guard, still)


def _read(operand: Value, formats: Formats) -> Value:
    """An operand as the multiplier reads it."""
    return operand if formats.numerics.multiply is None else rounded(operand, formats.multiply)


def dot_rows(a: Value, c: Value, formats: Formats) -> Value:
    r"""$\sum_i a_{ri} c_{ri}$ of each row: [rows, 1]."""
    terms = _Terms(
        value=_row_sum(a.value * c.value),
        mass=_row_sum(a.size * c.size),
        worst_mass=_row_sum(a.largest * c.largest),
        squares=_row_sum(a.value**2 * c.value**2),
        linear=_row_sum(a.bound * np.abs(c.value) + a.size * c.bound),
        worst=_row_sum(a.worst * np.abs(c.value) + a.largest * c.worst),
        systematic=_row_sum(a.systematic * c.size + a.size * c.systematic),
        independent_squared=_row_sum(a.independent**2 * c.size**2 + a.size**2 * c.independent**2),
        variance=_row_sum(a.variance * c.value**2 + a.value**2 * c.variance),
    )
    guard = low_entropy_rows(a.value, c.value)[:, None]
    return _accumulated(terms, a.shape[1], formats.accumulate, formats, guard, terms.mass == 0)


def _accumulated(
    terms: _Terms,
    n: int,
    format: Format,
    formats: Formats,
    guard: np.ndarray,
    still: np.ndarray | bool = False,
) -> Value:
    """Add the error of summing n terms; `still` marks sums without any."""
    unit = 2 * format.unit if formats.truncates else format.unit
    moving = ~np.asarray(still)
    mass, worst_mass = terms.mass * moving, terms.worst_mass * moving
    floor = 2 * n * format.eta * moving

    cautious = gamma_worst(n, unit) + gamma_worst(n, UNIT)
    likely = gamma_likely(n, unit) + gamma_likely(n, UNIT)
    guard = guard | formats.truncates
    guarded = guard.any()
    rate = np.where(guard, cautious, likely) if guarded else likely
    linear = terms.linear + rate * mass + floor
    spread = min(math.sqrt(n) * unit, gamma_worst(n, unit) / LAMBDA)
    spread = math.hypot(spread, math.sqrt(n) * UNIT)
    independent = np.sqrt(terms.independent_squared + (spread * mass) ** 2)
    systematic = terms.systematic + n * (unit**2 + UNIT**2) * mass + floor
    typical = unit**2 * n * (terms.value**2 + terms.squares) / 6  # exchangeable terms
    overflow = np.where(terms.mass > format.max, np.inf, 0.0)
    if guarded:
        systematic = np.where(guard, linear, systematic)
        independent = np.where(guard, 0.0, independent)
    return bounded(
        terms.value,
        linear + overflow,
        terms.worst + cautious * worst_mass + floor + overflow,
        systematic + overflow,
        independent,
        terms.variance + typical * moving,
    )


def _with_bias(terms: _Terms, bias: Value) -> _Terms:
    return _Terms(
        value=terms.value + bias.value,
        mass=terms.mass + bias.size,
        worst_mass=terms.worst_mass + bias.largest,
        squares=terms.squares + bias.value**2,
        linear=terms.linear + bias.bound,
        worst=terms.worst + bias.worst,
        systematic=terms.systematic + bias.systematic,
        independent_squared=terms.independent_squared + bias.independent**2,
        variance=terms.variance + bias.variance,
    )


def _row_sum(array: np.ndarray) -> np.ndarray:
    return array.sum(axis=1, keepdims=True)


def _product(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The matrix product, for nothing where one factor is nothing: most operands are exact."""
    if not (a.any() and w.any()):
        return np.zeros((a.shape[0], w.shape[1]))
    return a @ w
