r"""Activations of an expert and the clamps before them, each with its derivative.

Smooth ones carry errors by their slope and bend; those with a kink by their values at both ends of
the interval $v \pm b$, and the slope is unknown, off by 1, where the interval holds the kink.
"""

import functools
import math

import numpy as np

from moe_ref.oracle._formats import Format
from moe_ref.oracle._smooth import HALF_ULPS, Smooth, apply, apply_slope, sigmoid_of
from moe_ref.oracle._value import Value, bounded, rounded
from moe_ref.spec import ExpertSpec

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def activate(x: Value, spec: ExpertSpec, format: Format) -> Value:
    r"""$\phi(x)$ of a spec."""
    if spec.activation == "relu":
        return clamp(x, 0.0, math.inf)
    if spec.activation == "relu_squared":
        return _squared(clamp(x, 0.0, math.inf), format)
    return apply(x, _smooth(spec), format)


def activate_slope(x: Value, spec: ExpertSpec, format: Format) -> Value:
    r"""$\phi'(x)$ of a spec; 0 at the kink of relu."""
    if spec.activation == "relu":
        return clamp_slope(x, 0.0, math.inf)
    if spec.activation == "relu_squared":
        return clamp(x, 0.0, math.inf).map(lambda array: 2 * array)
    return apply_slope(x, _smooth(spec), format)


def clamp(x: Value, low: float, high: float, slack: float = 0.0) -> Value:
    """The number moved into [low, high]; exact where the whole interval lies outside.

    Args:
        x: the number.
        low: lower end.
        high: upper end.
        slack: how far a kernel's own ends may be off, where its format does not hold them.
    """
    value = np.clip(x.value, low, high)
    bound, worst = _moved(x, x.bound, low, high), _moved(x, x.worst, low, high)
    moves = bound > 0
    if slack:
        at_end = (x.value + x.worst > high - slack) | (x.value - x.worst < low + slack)
        bound, worst = bound + slack * at_end, worst + slack * at_end
    return Value(
        value,
        bound,
        worst,
        np.where(moves, x.systematic, 0.0) + slack,
        np.where(moves, x.independent, 0.0),
        np.where((x.value > low) & (x.value < high), x.variance, 0.0),
    )


def clamp_slope(x: Value, low: float, high: float, slack: float = 0.0) -> Value:
    """1 inside, 0 outside; unknown where the number may lie on either side, and at `high`.

    At `low`, relu's kink, a number known exactly has slope 0. At `high` frameworks differ: 1, 1/2
    or 0. A NaN has slope 0 with bound inf: nothing is asked of a kernel there.
    """
    value = ((x.value > low) & (x.value <= high)).astype(np.float64)
    bound, worst = (_unsure(x, error + slack, low, high) for error in (x.bound, x.worst))
    return bounded(value, bound, worst, bound, np.zeros_like(value), bound / 3)


def _moved(x: Value, error: np.ndarray, low: float, high: float) -> np.ndarray:
    """How far the clamped number moves when the number moves by `error`."""
    value = np.clip(x.value, low, high)
    up, down = np.clip(x.value + error, low, high), np.clip(x.value - error, low, high)
    return np.maximum(up - value, value - down)


def _unsure(x: Value, error: np.ndarray, low: float, high: float) -> np.ndarray:
    near_low = (np.abs(x.value - low) <= error) & (error > 0)
    near = near_low | (np.abs(x.value - high) <= error)
    return np.where(np.isnan(x.value), np.inf, near.astype(np.float64))


def _squared(x: Value, format: Format) -> Value:
    square = bounded(
        x.value**2,
        x.bound * (np.abs(x.value) + x.size),
        x.worst * (np.abs(x.value) + x.largest),
        2 * x.size * x.systematic,
        2 * x.size * x.independent,
        4 * x.value**2 * x.variance,
    )
    return rounded(square, format)


def _smooth(spec: ExpertSpec) -> Smooth:
    if spec.activation == "silu":
        return silu(spec.swiglu_alpha)
    return GELU if spec.activation == "gelu" else GELU_TANH


@functools.cache
def silu(alpha: float) -> Smooth:
    r"""$x\,\sigma(\alpha x)$."""

    def f(x):
        return x * sigmoid_of(alpha * x)

    def slope(x):
        s = sigmoid_of(alpha * x)
        return s * (1 + alpha * x * sigmoid_of(-alpha * x))

    def bend(x):
        s, c = sigmoid_of(alpha * x), sigmoid_of(-alpha * x)
        return alpha * s * c * (2 + alpha * x * (c - s))

    def rough(x):  # alpha and alpha x are rounded before the exponential
        return 2 * np.abs(alpha * x * sigmoid_of(-alpha * x) * f(x)) * (alpha != 1)

    def rough_slope(x):  # 1 - sigma is formed with an absolute error
        s, z = sigmoid_of(alpha * x), np.abs(alpha * x)
        return 16 * s * (1 + z * (1 - s)) + 8 * z * s**2

    return Smooth(f, slope, bend, 1.1, 0.5 * alpha, 0.314 * alpha**2, rough, rough_slope)


def _density(x):
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _gelu_slope(x):
    return _erfc(-x / math.sqrt(2)) / 2 + x * _density(x)


# Both forms of gelu take 1 + (something near -1): an error of half an ulp of 1, times |x|.
GELU = Smooth(
    f=lambda x: x * _erfc(-x / math.sqrt(2)) / 2,
    slope=_gelu_slope,
    bend=lambda x: _density(x) * (2 - x**2),
    steepest=1.13,
    max_bend=0.798,
    max_twist=0.779,
    rough=lambda x: HALF_ULPS * np.abs(x) / 2,
    rough_slope=lambda x: HALF_ULPS * (1 + np.abs(x) * _density(x) * (1 + x**2)),
)

_K, _A = math.sqrt(2 / math.pi), 0.044715


def _tanh_parts(x):
    """T = tanh(z) with z = k (x + a x^3), and z', z''."""
    return np.tanh(_K * (x + _A * x**3)), _K * (1 + 3 * _A * x**2), 6 * _K * _A * x


def _gelu_tanh_slope(x):
    t, dz, _ = _tanh_parts(x)
    return (1 + t) / 2 + x / 2 * (1 - t**2) * dz


def _gelu_tanh_bend(x):
    t, dz, ddz = _tanh_parts(x)
    first = (1 - t**2) * dz
    return first + x / 2 * ((1 - t**2) * ddz - 2 * t * first * dz)


GELU_TANH = Smooth(
    f=lambda x: x / 2 * (1 + _tanh_parts(x)[0]),
    slope=_gelu_tanh_slope,
    bend=_gelu_tanh_bend,
    steepest=1.13,
    max_bend=0.798,
    max_twist=0.782,
    rough=lambda x: HALF_ULPS * np.abs(x) / 2,
    rough_slope=lambda x: HALF_ULPS * (1 + np.abs(x * _tanh_parts(x)[1])),
)
