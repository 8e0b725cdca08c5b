"""What codes and scales of NVFP4 and block-scaled FP8 are read as, to the bit."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import mx, oracle
from mx.data import as_float32, floats, patterns


def _rounded(exact, bits):
    """To numbers with so many significant bits, of float32's range."""
    with np.errstate(invalid="ignore"):
        step = np.maximum(np.frexp(exact)[1] - 1, -126) - (bits - 1)
        rounded = np.ldexp(np.rint(np.ldexp(exact, -step)), step)
    rounded = np.where(np.isfinite(exact), rounded, exact)
    return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, exact), rounded)


def _values_agree(q, exact):
    for dtype, bits in ((jnp.float32, 24), (jnp.bfloat16, 8)):
        assert q.dequantize(dtype).dtype == dtype
        values = np.asarray(q.dequantize(dtype).astype(jnp.float32))
        wanted = as_float32(_rounded(exact, bits))
        kept = ~np.isnan(exact)
        np.testing.assert_array_equal(np.isnan(values), ~kept)
        np.testing.assert_array_equal(patterns(values)[kept], patterns(wanted)[kept])


@pytest.mark.parametrize("tensor", [1.0, -0.3, 3.4e38, 2.0**-126 / 3, 1e-44, 0.0, np.inf, np.nan])
def test_every_code_with_every_scale_of_nvfp4(tensor):
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (256, 256))
    scales = np.arange(256, dtype=np.uint8)[:, None]
    t = np.float32(tensor)
    q = mx.Quantized(*map(jnp.asarray, (codes, scales)), "nvfp4", (-1,), (256,), jnp.asarray(t))
    with np.errstate(invalid="ignore"):
        exact = oracle.dequantize(
            codes, scales, "nvfp4", axis=-1, block=256, tensor_scale=floats(patterns(t))
        )
        third = codes % 16
        third = third.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        third *= scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        third *= float(t)
    np.testing.assert_array_equal(exact, third)
    _values_agree(q, exact)


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_every_code_with_many_scales_of_fp8(format):
    rng = np.random.default_rng(0)
    some = rng.integers(0, 2**32, 500, np.uint32)
    edges = [0, 1, 0x80000000, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]
    scales = floats(np.concatenate([some, np.array(edges, np.uint32)]))[:, None]
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (len(scales), 256))
    q = mx.Quantized(*map(jnp.asarray, (codes, scales)), format, (-1,), (256,))
    with np.errstate(invalid="ignore"):
        _values_agree(q, oracle.dequantize(codes, scales, format, axis=-1, block=256))


def test_a_tensor_scale_for_each_of_many():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4, 32)), jnp.float32)
    x = x * jnp.asarray([1.0, 1e-3, 1e3], jnp.float32).reshape(1, 3, 1, 1)
    one = lambda x: mx.quantize(x, "nvfp4", axis=-1)  # noqa: E731
    q = jax.vmap(jax.vmap(one))(x)
    assert q.tensor_scale is not None
    assert q.tensor_scale.shape == (2, 3)
    values = np.asarray(q.dequantize())
    for i, j in np.ndindex(2, 3):
        np.testing.assert_array_equal(values[i, j], np.asarray(one(x[i, j]).dequantize()))
