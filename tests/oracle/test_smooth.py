"""Activations and scores: declared constants, slopes, and float32 kernels inside the bounds."""

import math

import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.oracle import _activations as act
from moe_ref.oracle import _smooth as smooth
from moe_ref.oracle._formats import FORMATS
from moe_ref.oracle._value import exact
from moe_ref.spec import ExpertSpec

GRID = np.linspace(-30, 30, 60001)
FUNCTIONS = {
    "silu": act.silu(1.0),
    "silu-1.702": act.silu(1.702),
    "gelu": act.GELU,
    "gelu-tanh": act.GELU_TANH,
    "sigmoid": smooth.SIGMOID,
    "sqrt-softplus": smooth.SQRT_SOFTPLUS,
    "soft-cap": smooth.soft_cap(2.0),
}


def plain(name, x):
    """The functions again, from their definitions."""
    with np.errstate(over="ignore"):
        s = 1 / (1 + np.exp(-x))
        if name.startswith("silu"):
            return x / (1 + np.exp(-(1.702 if "1.702" in name else 1.0) * x))
    if name == "gelu":
        return x * np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    if name == "gelu-tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "sqrt-softplus":
        return np.sqrt(np.log1p(np.exp(x)))
    return s if name == "sigmoid" else 2 * np.tanh(x / 2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_slopes_and_declared_maxima(name):
    s, h = FUNCTIONS[name], GRID[1] - GRID[0]
    value, slope, bend = s.f(GRID), s.slope(GRID), s.bend(GRID)
    noise = 64 * 2.0**-53 * (1 + np.abs(GRID))  # a definition may cancel where the oracle does not
    assert (np.abs(value - plain(name, GRID)) <= noise).all()
    # Central differences over one grid step are off by at most max|f'''| h^2 / 6, and rounding.
    twist = s.max_twist * h**2 / 6 + noise[1:-1] / h
    assert (np.abs((value[2:] - value[:-2]) / (2 * h) - slope[1:-1]) <= twist).all()
    # The fourth derivative is not declared; on this scale it stays below 4 max|f'''|.
    shake = 4 * s.max_twist * h**2 / 6 * 4 + noise[1:-1] / h
    assert (np.abs((slope[2:] - slope[:-2]) / (2 * h) - bend[1:-1]) <= shake).all()
    third = np.abs(np.diff(bend) / h).max()
    for measured, declared in (
        (np.abs(slope).max(), s.steepest),
        (np.abs(bend).max(), s.max_bend),
        (third, s.max_twist),
    ):
        assert 0.98 * declared <= measured <= declared


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu", "relu_squared"])
def test_float32_kernels_are_inside(name):
    x = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * 4
    one, half = np.float32(1), np.float32(0.5)
    if name == "silu":
        y = x * (one / (one + np.exp(-x)))
    elif name == "gelu":
        erf = np.vectorize(math.erf, otypes=[np.float32])
        y = half * x * (one + erf(x * np.float32(0.5**0.5)))
    elif name == "gelu_tanh":
        k, a = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
        y = half * x * (one + np.tanh(k * (x + a * x * x * x)))
    else:
        y = np.maximum(x, 0) if name == "relu" else np.maximum(x, 0) ** 2
    assert y.dtype == np.float32
    spec = ExpertSpec(d_hidden=1, activation=name, gated=False)
    expected = act.activate(exact(x.astype(np.float64)), spec, FORMATS["float32"])
    ratio = oracle.ratio(y, expected.value, expected.bound)
    assert ratio.max() <= 1
    doubled = oracle.ratio(y * np.float32(1.00001), expected.value, expected.bound)
    assert doubled.max() > 1


def test_kinks():
    format, spec = FORMATS["float32"], ExpertSpec(d_hidden=1, activation="relu", gated=False)
    x = exact(np.array([-1.0, -0.0, 0.0, 2.0, np.nan]))
    slope = act.activate_slope(x, spec, format)
    assert slope.value[:4].tolist() == [0, 0, 0, 1]
    assert slope.bound.tolist() == [0, 0, 0, 0, np.inf]
    assert np.isnan(act.activate(x, spec, format).value[4])
    clamped = act.clamp(x, -1.0, 1.0)
    assert clamped.value[:4].tolist() == [-1, 0, 0, 1]
    assert act.clamp_slope(x, -math.inf, 2.0).bound.tolist()[:4] == [0, 0, 0, 1]
