"""Blocks lie where they were asked for, tails and neighbours stay apart, and nothing is guessed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import mx, oracle
from mx.data import FORMATS, POLICIES, as_float32, patterns, quantize, wide

X = wide(64).reshape(32, 2, 32)


def _same(a, b):
    np.testing.assert_array_equal(np.asarray(a.elements), np.asarray(b.elements))
    np.testing.assert_array_equal(np.asarray(a.scales), np.asarray(b.scales))


@pytest.mark.parametrize("axis", [0, 2, -1, -3])
def test_along_an_axis(axis):
    q = mx.quantize(jnp.asarray(X), "mxfp8_e4m3", axis=axis)
    _same(q, oracle.quantize(X, "mxfp8_e4m3", axis=axis))
    wanted = as_float32(oracle.dequantize(q.elements, q.scales, "mxfp8_e4m3", axis=axis))
    values = np.asarray(q.dequantize())
    np.testing.assert_array_equal(values, wanted)
    assert q.axis == (axis if axis < 0 else axis - 3,)


def test_axes_of_one_length_are_told_apart():
    """A square array has the same scales' shape either way: the wrong axis changes the bytes."""
    square = jnp.asarray(wide(32))
    rows, columns = (mx.quantize(square, "mxfp8_e4m3", axis=axis) for axis in (-1, 0))
    assert (rows.scales.reshape(-1) != columns.scales.reshape(-1)).any()
    _same(columns, oracle.quantize(square, "mxfp8_e4m3", axis=0))


@pytest.mark.parametrize(("axis", "length"), [(0, 31), (1, 70), (0, 70)])
def test_a_short_last_block_is_one_of_its_own_row(axis, length):
    x = np.moveaxis(wide(64)[:, :1].repeat(70, 1)[:, :length] + wide(64, 1)[:, [3]], 1, axis)
    q = mx.quantize(jnp.asarray(x), "mxfp8_e4m3", axis=axis, tail="pad")
    _same(q, oracle.quantize(x, "mxfp8_e4m3", axis=axis))
    zeros = [(0, 0)] * 2
    zeros[axis] = (0, -length % 32)
    padded = mx.quantize(jnp.asarray(np.pad(x, zeros)), "mxfp8_e4m3", axis=axis)
    np.testing.assert_array_equal(np.asarray(q.scales), np.asarray(padded.scales))
    kept = padded.dequantize()[tuple(slice(size) for size in x.shape)]
    np.testing.assert_array_equal(np.asarray(q.dequantize()), np.asarray(kept))


def test_blocks_of_two_dimensions():
    x = wide(64).reshape(32, 64)
    q = mx.quantize(jnp.asarray(x), "mxfp8_e4m3", axis=(0, 1), block=(16, 32))
    rows = x.reshape(2, 16, 2, 32).transpose(0, 2, 1, 3).reshape(4, 512)
    flat = oracle.quantize(rows, "mxfp8_e4m3", axis=-1, block=512)
    np.testing.assert_array_equal(np.asarray(q.scales), flat.scales.reshape(2, 2))
    back = flat.elements.reshape(2, 2, 16, 32).transpose(0, 2, 1, 3).reshape(32, 64)
    np.testing.assert_array_equal(np.asarray(q.elements), back)
    turned = mx.quantize(jnp.asarray(x), "mxfp8_e4m3", axis=(-1, -2), block=(32, 16))
    _same(q, turned)
    values = oracle.dequantize(flat.elements, flat.scales, "mxfp8_e4m3", axis=-1, block=512)
    values = as_float32(values).reshape(2, 2, 16, 32).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(np.asarray(q.dequantize()), values.reshape(32, 64))


EDGES = {
    "zero": (np.zeros(32), 0x00),
    "subnormal": (np.full(32, 1e-40), 0x00),
    "NaN": (np.r_[np.nan, np.ones(31)], {"poison": 0xFF, "te": None}),
    "Inf": (np.r_[-np.inf, np.ones(31)], {"poison": 0xFF, "te": 0xFE}),
}


@pytest.mark.parametrize("nonfinite", POLICIES)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp4_e2m1", "mxint8"])
def test_an_odd_block_leaves_its_neighbours_alone(format, edge, nonfinite):
    values, scale = EDGES[edge]
    plain = np.linspace(-3, 5, 96, dtype=np.float32).reshape(1, 96)
    odd = plain.copy()
    odd[0, 32:64] = values
    before = quantize(plain, format, nonfinite=nonfinite)
    after = quantize(odd, format, nonfinite=nonfinite)
    untouched = np.r_[:32, 64:96]
    same = np.asarray(before.elements == after.elements)[0, untouched]
    assert same.all()
    assert (np.asarray(before.scales) == np.asarray(after.scales))[0, [0, 2]].all()
    assert np.isfinite(np.asarray(after.dequantize())[0, untouched]).all()
    wanted = scale[nonfinite] if isinstance(scale, dict) else scale
    if wanted is not None:
        assert after.scales[0, 1] == wanted
    if edge == "subnormal" and "fp8" in format:
        np.testing.assert_array_equal(
            patterns(after.dequantize()[0, 32:64]),
            patterns(oracle.dequantize(after.elements, after.scales, format, axis=-1)[0, 32:64]),
        )
        assert (np.asarray(after.dequantize())[0, 32:64] != 0).all()


def test_negative_zero_keeps_its_sign():
    for format in FORMATS:
        q = quantize(np.full((1, 96), -0.0, np.float32), format)
        assert np.signbit(q.dequantize()).all() == (format != "mxint8")


def test_jit_vmap_and_a_second_axis():
    x = jnp.asarray(X)
    whole = mx.quantize(x, "mxfp4_e2m1", axis=-1)
    mapped = jax.vmap(lambda row: mx.quantize(row, "mxfp4_e2m1", axis=1))(x)
    _same(whole, mapped)
    assert mapped.axis == whole.axis
    values = jax.jit(lambda q: q.dequantize())(mapped)
    np.testing.assert_array_equal(patterns(values), patterns(whole.dequantize()))


def test_an_empty_array_has_no_blocks():
    q = mx.quantize(jnp.zeros((0, 64)).astype(jnp.float32), "mxfp8_e4m3", axis=-1)
    assert q.scales.shape == (0, 2)
    q = mx.quantize(jnp.zeros((3, 0)).astype(jnp.float32), "mxfp8_e4m3", axis=-1)
    assert q.scales.shape == (3, 0)
    assert q.dequantize().shape == (3, 0)
