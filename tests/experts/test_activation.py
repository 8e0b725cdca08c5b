"""Activations at the points where something happens: kinks, clamps, offsets, NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref.experts import activation
from moe_ref.spec import ExpertSpec


def one(spec: ExpertSpec, gate: float, up: float | None = None):
    """Value and derivatives of a hidden layer of width 1."""
    inputs = jnp.array([[gate]] if up is None else [[gate, up]])
    value, back = jax.vjp(lambda projected: activation(projected, spec=spec), inputs)
    return float(value[0, 0]), back(jnp.ones((1, 1)))[0][0].tolist()


@pytest.mark.parametrize(
    ("name", "at", "wanted"),
    [
        ("relu", 3.0, (3.0, [1.0])),
        ("relu", 0.0, (0.0, [0.0])),
        ("relu", -3.0, (0.0, [0.0])),
        ("relu_squared", 3.0, (9.0, [6.0])),
        ("relu_squared", 0.0, (0.0, [0.0])),
        ("relu_squared", -3.0, (0.0, [0.0])),
        ("silu", 0.0, (0.0, [0.5])),
        ("gelu", 0.0, (0.0, [0.5])),
        ("gelu_tanh", 0.0, (0.0, [0.5])),
        ("silu", -1e4, (0.0, [0.0])),
        ("gelu", -1e4, (0.0, [0.0])),
        ("gelu_tanh", 1e3, (1e3, [1.0])),
    ],
)
def test_plain_points(name, at, wanted):
    spec = ExpertSpec(d_hidden=1, activation=name, gated=False)
    assert one(spec, at) == wanted
    # A gate multiplies it by up, and by nothing else.
    value, (slope,) = wanted
    assert one(ExpertSpec(d_hidden=1, activation=name), at, 2.0) == (2 * value, [2 * slope, value])


CLAMPED = ExpertSpec(d_hidden=1, activation="relu", swiglu_limit=7.0, up_offset=1.0)


@pytest.mark.parametrize(
    ("gate", "up", "wanted"),
    [
        (2.0, 3.0, (8.0, [4.0, 2.0])),
        (9.0, 3.0, (28.0, [0.0, 7.0])),
        (2.0, 9.0, (16.0, [8.0, 0.0])),
        (2.0, -9.0, (-12.0, [-6.0, 0.0])),
        (7.0, 7.0, (56.0, [8.0, 7.0])),
        (2.0, -7.0, (-12.0, [-6.0, 2.0])),
    ],
)
def test_gate_is_clamped_above_and_up_on_both_sides(gate, up, wanted):
    """At the limit itself the gradient passes. The offset comes after the clamp."""
    assert one(CLAMPED, gate, up) == wanted


def test_gate_is_not_clamped_below():
    square = ExpertSpec(d_hidden=1, activation="silu", swiglu_limit=7.0)
    free = ExpertSpec(d_hidden=1, activation="silu")
    assert one(square, -9.0, 1.0) == one(free, -9.0, 1.0)
    assert one(square, -9.0, 1.0)[0] != one(square, -7.0, 1.0)[0]


def test_gate_columns_come_first():
    spec = ExpertSpec(d_hidden=2, activation="relu")
    assert activation(jnp.array([[1.0, -1, 10, 20]]), spec=spec).tolist() == [[10, 0]]


def test_alpha_scales_the_slope_and_not_the_value():
    """x sigmoid(a x) = silu(a x) / a."""
    plain, steep = (ExpertSpec(d_hidden=1, gated=False, swiglu_alpha=a) for a in (1.0, 2.0))
    assert one(steep, 1.5)[0] == one(plain, 3.0)[0] / 2
    assert one(steep, 1.5)[1] == one(plain, 3.0)[1]


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu", "relu_squared"])
@pytest.mark.parametrize("limit", [None, 7.0])
def test_nan_is_kept(name, limit):
    spec = ExpertSpec(d_hidden=1, activation=name, swiglu_limit=limit)
    assert np.isnan(one(spec, np.nan, 1.0)[0])
    assert np.isnan(one(spec, 1.0, np.nan)[0])
    assert np.isnan(one(ExpertSpec(d_hidden=1, activation=name, gated=False), np.nan)[0])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_dtype_is_that_of_the_input(dtype):
    spec = ExpertSpec(d_hidden=3, swiglu_limit=7.0, up_offset=1.0, swiglu_alpha=1.7)
    assert activation(jnp.ones((2, 6), dtype), spec=spec).dtype == dtype


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("projected", "message"),
    [
        (jnp.zeros((2, 3)), r"`projected` must be of 6 columns; got shape \(2, 3\)"),
        (jnp.zeros((2, 6), int), r"activation: `projected` must be Float.*got i64\[2,6\]"),
    ],
)
def test_errors(projected, message, transform):
    spec = ExpertSpec(d_hidden=3)
    with pytest.raises(ValueError, match=message):
        transform(lambda projected: activation(projected, spec=spec))(projected)
