"""The library against the oracle: all codes, bfloat16 magnitudes, boundaries and rules."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import mx, oracle
from mx.data import (
    FORMATS,
    POLICIES,
    RULES,
    as_float32,
    floats,
    magnitudes,
    numbers,
    pairs,
    patterns,
    quantize,
    wide,
)

PAIRS, WIDE = pairs(), wide()


def assert_same(q, o):
    np.testing.assert_array_equal(np.asarray(q.scales), o.scales)
    np.testing.assert_array_equal(np.asarray(q.elements), o.elements)


# Policies and rules meet in `even` alone, where magnitudes round to Inf.
RULES_AND_POLICIES = [*((rule, "poison") for rule in RULES), ("even", "te")]


@pytest.mark.parametrize(("rule", "nonfinite"), RULES_AND_POLICIES)
@pytest.mark.parametrize("format", FORMATS)
def test_every_rule(format, rule, nonfinite):
    options = {"rule": rule, "nonfinite": nonfinite, "block": 2}
    q = quantize(PAIRS, format, **options)
    assert_same(q, oracle.quantize(PAIRS, format, axis=-1, **options))


@pytest.mark.parametrize("nonfinite", POLICIES)
@pytest.mark.parametrize("format", FORMATS)
def test_blocks_of_thirty_two(format, nonfinite):
    q = quantize(WIDE, format, nonfinite=nonfinite)
    assert_same(q, oracle.quantize(WIDE, format, axis=-1, nonfinite=nonfinite))


def test_every_bfloat16_magnitude_is_among_them():
    upper = patterns(magnitudes())
    assert set((upper[upper & 0xFFFF == 0] >> 16).tolist()) >= set(range(0x7F81))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxint8"])
def test_sixteen_bit_inputs(format, dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, 2)
    q = quantize(x, format, block=2)
    assert_same(q, oracle.quantize(x, format, axis=-1, block=2))


@pytest.mark.parametrize("byte", [1, 127, 200])
@pytest.mark.parametrize("format", FORMATS)
def test_every_rounding_boundary(format, byte):
    """Middles between numbers and their neighbours in float32, in blocks of a known scale."""
    table = numbers(format)
    points = np.concatenate([(table[1:] + table[:-1]) / 2, table[:-1]]) * 2.0 ** (byte - 127)
    near = patterns(points)[:, None].astype(np.int64) + np.arange(-1, 2)
    near = near.clip(0).ravel()
    anchor = patterns(np.float32(table[-1] * 2.0 ** (byte - 127)))
    pad = -len(near) % 31
    values = np.concatenate([near, np.zeros(pad, np.int64)]).reshape(-1, 31)
    blocks = np.concatenate([np.full((len(values), 1), anchor), values], -1).astype(np.uint32)
    blocks[:, 1:] |= (np.arange(31, dtype=np.uint32) % 2) << 31
    x = floats(blocks)
    q = quantize(x, format)
    assert (np.asarray(q.scales) == byte).all()
    assert_same(q, oracle.quantize(x, format, axis=-1))


@pytest.mark.parametrize("format", FORMATS)
def test_every_code_with_every_scale(format):
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (256, 256))
    scales = np.arange(256, dtype=np.uint8)[:, None]
    q = mx.Quantized(jnp.asarray(codes), jnp.asarray(scales), format, (-1,), (256,))
    wanted = oracle.dequantize(codes, scales, format, axis=-1, block=256)
    exact = as_float32(wanted)
    with np.errstate(over="ignore"):
        rounded = exact.astype(ml_dtypes.bfloat16)
    values = np.asarray(q.dequantize())
    np.testing.assert_array_equal(np.isnan(values), np.isnan(wanted))
    kept = ~np.isnan(wanted)
    np.testing.assert_array_equal(patterns(values)[kept], patterns(exact)[kept])
    narrow = np.asarray(q.dequantize(jnp.bfloat16))
    np.testing.assert_array_equal(np.isnan(narrow), np.isnan(wanted))
    np.testing.assert_array_equal(narrow.view(np.uint16)[kept], rounded.view(np.uint16)[kept])
    with jax.disable_jit():
        np.testing.assert_array_equal(patterns(q.dequantize()), patterns(values))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_dequantised_is_quantised_to_itself(format):
    """In a block that holds the largest number, for scales at which nothing overflows."""
    table = numbers(format).astype(np.float32)
    chosen = table[np.linspace(0, len(table) - 1, 32).round().astype(int)]
    scale = np.arange(0, 239)[:, None]
    values = (chosen * 2.0 ** (scale - 127.0)).astype(np.float32)
    q = quantize(values, format)
    np.testing.assert_array_equal(np.asarray(q.scales), scale)
    np.testing.assert_array_equal(patterns(q.dequantize()), patterns(values))
