"""Products and sums of numbers with bounds."""

import dataclasses

import numpy as np

from moe_ref.oracle._formats import Format
from moe_ref.oracle._value import Value, bounded, correlated, rounded


def multiply(a: Value, c: Value, format: Format | None = None) -> Value:
    """The product, rounded once to `format`; None leaves the rounding to the sum it goes into."""
    size_a, size_c = a.size, c.size
    product = bounded(
        a.value * c.value,
        np.abs(a.value) * c.bound + a.bound * size_c,
        np.abs(a.value) * c.worst + a.worst * c.largest,
        size_a * c.systematic + a.systematic * size_c,
        np.hypot(size_a * c.independent, a.independent * size_c),
        a.value**2 * c.variance + a.variance * c.value**2,
    )
    return product if format is None else rounded(product, format)


def add(a: Value, c: Value, format: Format) -> Value:
    """The sum, rounded once."""
    total = bounded(
        a.value + c.value,
        a.bound + c.bound,
        a.worst + c.worst,
        a.systematic + c.systematic,
        np.hypot(a.independent, c.independent),
        a.variance + c.variance,
    )
    return rounded(total, format)


def negate(a: Value) -> Value:
    """Minus the numbers, which changes no error."""
    return dataclasses.replace(a, value=-a.value)


def quotient(a: Value, d: Value) -> Value:
    """The quotient by positive numbers, its own rounding left out; inf where one may be 0."""
    value = a.value / d.value

    def error(of_a, of_d):
        room = d.value - of_d
        return np.where(room > 0, (of_a + np.abs(value) * of_d) / room, np.inf)

    return correlated(value, error(a.bound, d.bound), error(a.worst, d.worst))


def with_factor(x: Value, factor: Value | None, part: np.ndarray | None = None) -> Value:
    r"""Add the error of a `factor` that went into `x` as if it were exact.

    A row that is linear in one weight is computed with the weight's value; the weight's own error
    is one common factor of the row, $|x|\,b_w / |w|$, and must not be spread over the terms of the
    dot products in between as if it differed from term to term.

    Args:
        x: computed with `factor.value`.
        factor: [rows, 1]; None adds nothing.
        part: the part of `x` that is linear in the factor, where not all of it is.
    """
    if factor is None or not factor.worst.any():
        return x
    weight = np.abs(factor.value)
    linear = np.abs(x.value if part is None else part)
    bound, worst, spread = (
        np.where(error == 0, 0.0, error / weight)
        for error in (factor.bound, factor.worst, np.sqrt(factor.variance))
    )
    return bounded(
        x.value,
        x.bound + (linear + x.bound) * bound,
        x.worst + (linear + x.worst) * worst,
        x.systematic + (linear + x.bound) * bound,
        x.independent,
        x.variance + linear**2 * spread**2,
    )
