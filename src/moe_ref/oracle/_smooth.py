r"""Smooth functions with what is needed to bound their errors.

For a kernel that computes $f$ to $c$ half ulps from an argument off by at most $b$,

$$|\delta f| \le |f'(v)|\,b + \tfrac12 \max|f''|\,b^2 + c\,u\,|f(v)| + 4\eta, \qquad c = 8.$$
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from moe_ref.oracle._formats import UNIT, Format
from moe_ref.oracle._value import Value, bounded

HALF_ULPS = 8
Function = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Smooth:
    """A function, its slope, and bounds on both.

    Args:
        f: the function.
        slope: its derivative.
        bend: its second derivative.
        steepest: maximum of |slope|.
        max_bend: maximum of |bend|.
        max_twist: maximum of the third derivative's magnitude.
        rough: error of evaluating `f`, in half ulps of 1, beyond `HALF_ULPS` relative ones.
        rough_slope: error of evaluating `slope`, in half ulps of 1.
    """

    f: Function
    slope: Function
    bend: Function
    steepest: float
    max_bend: float
    max_twist: float
    rough: Function
    rough_slope: Function


def apply(x: Value, s: Smooth, format: Format) -> Value:
    """The function of a number."""
    value = s.f(x.value)
    return _through(x, value, s.slope(x.value), s.steepest, s.max_bend, s.rough(x.value), format)


def apply_slope(x: Value, s: Smooth, format: Format) -> Value:
    """The function's derivative at a number."""
    value, rough = s.slope(x.value), s.rough_slope(x.value)
    return _through(x, value, s.bend(x.value), s.max_bend, s.max_twist, rough, format)


def _through(x, value, slope, steepest, curvature, rough, format) -> Value:
    own = HALF_ULPS * np.abs(value) + rough
    floor = (format.unit + UNIT) * own + 4 * format.eta
    slope = np.abs(slope)
    bound, worst = (
        np.minimum(slope * error + curvature / 2 * error**2, steepest * error)
        for error in (x.bound, x.worst)
    )
    linear = np.minimum(slope * x.systematic + curvature / 2 * x.bound**2, steepest * x.bound)
    return bounded(
        value,
        bound + floor,
        worst + floor,
        linear + floor,
        slope * x.independent,
        slope**2 * x.variance + (format.unit * value) ** 2 / 3,
    )


def sigmoid_of(x: np.ndarray) -> np.ndarray:
    r"""$1 / (1 + e^{-x})$ without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


SIGMOID = Smooth(
    f=sigmoid_of,
    slope=lambda x: sigmoid_of(x) * sigmoid_of(-x),
    bend=lambda x: sigmoid_of(x) * sigmoid_of(-x) * (sigmoid_of(-x) - sigmoid_of(x)),
    steepest=0.25,
    max_bend=0.0963,
    max_twist=0.126,
    rough=np.zeros_like,
    rough_slope=lambda x: 16 * sigmoid_of(x),
)


def _sqrt_softplus(x):
    return np.sqrt(np.logaddexp(0.0, x))


def _sqrt_softplus_slope(x):
    s = _sqrt_softplus(x)
    return np.where(s > 0, sigmoid_of(x) / (2 * np.where(s > 0, s, 1.0)), 0.0)


def _sqrt_softplus_bend(x):
    s = np.where(_sqrt_softplus(x) > 0, _sqrt_softplus(x), 1.0)
    return sigmoid_of(x) * sigmoid_of(-x) / (2 * s) - _sqrt_softplus_slope(x) ** 2 / s


SQRT_SOFTPLUS = Smooth(
    f=_sqrt_softplus,
    slope=_sqrt_softplus_slope,
    bend=_sqrt_softplus_bend,
    steepest=0.32,
    max_bend=0.0746,
    max_twist=0.0478,
    rough=np.zeros_like,
    rough_slope=lambda x: 4 * HALF_ULPS * _sqrt_softplus_slope(x),
)


@functools.cache
def soft_cap(cap: float) -> Smooth:
    r"""$c \tanh(x / c)$."""

    def slope(x):
        return 1 - np.tanh(x / cap) ** 2

    return Smooth(
        f=lambda x: cap * np.tanh(x / cap),
        slope=slope,
        bend=lambda x: -2 / cap * np.tanh(x / cap) * slope(x),
        steepest=1.0,
        max_bend=0.77 / cap,
        max_twist=2.01 / cap**2,
        rough=np.zeros_like,
        rough_slope=lambda x: np.full_like(x, HALF_ULPS),
    )
