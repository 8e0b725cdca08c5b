"""The library against what others wrote: ml_dtypes after clipping, gfloat, float32 division."""

import gfloat
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gfloat import formats as gf

from moe_ref import mx, oracle
from mx.data import DTYPES, FORMATS, LARGEST, floats, magnitudes, numbers, patterns, quantize

GFLOAT = {
    "mxfp8_e4m3": gf.format_info_ocp_e4m3,
    "mxfp8_e5m2": gf.format_info_ocp_e5m2,
    "mxfp6_e3m2": gf.format_info_ocp_e3m2,
    "mxfp6_e2m3": gf.format_info_ocp_e2m3,
    "mxfp4_e2m1": gf.format_info_ocp_e2m1,
    "mxint8": gf.format_info_ocp_int8,
}


def _inputs(format):
    """Every finite bfloat16 up to the largest number, and float32 around every middle."""
    table = numbers(format)
    middles = patterns((table[1:] + table[:-1]) / 2)[:, None].astype(np.int64) + np.arange(-1, 2)
    values = np.concatenate([np.arange(0x7F80) << 16, middles.ravel()])
    values = floats(values)
    values = values[values <= table[-1]]
    values = np.concatenate([values, -values])
    return np.concatenate([values, np.zeros(-len(values) % 31, np.float32)]).reshape(-1, 31)


def _elements(format):
    """Codes at scale 1, which the largest number in front of each block gives."""
    values = _inputs(format)
    anchor = np.full((len(values), 1), LARGEST[format], np.float32)
    q = quantize(np.concatenate([anchor, values], -1), format)
    assert (np.asarray(q.scales) == 127).all()
    return values, np.asarray(q.elements)[:, 1:]


@pytest.mark.parametrize("format", DTYPES)
def test_elements_are_those_of_ml_dtypes(format):
    values, codes = _elements(format)
    np.testing.assert_array_equal(codes, values.astype(DTYPES[format]).view(np.uint8))


@pytest.mark.parametrize("format", FORMATS)
def test_elements_are_those_of_gfloat(format):
    values, codes = _elements(format)
    form = GFLOAT[format]
    rounded = gfloat.round_ndarray(form, values.astype(np.float64), sat=True)
    np.testing.assert_array_equal(codes, gfloat.encode_ndarray(form, rounded))


@pytest.mark.parametrize("format", FORMATS)
def test_numbers_of_the_oracle_are_those_of_gfloat(format):
    form = GFLOAT[format]
    codes = np.arange(1 << form.bits, dtype=np.uint8)
    values = oracle.dequantize(codes, np.uint8([127]), format, axis=0, block=256)
    np.testing.assert_array_equal(values, gfloat.decode_ndarray(form, codes))


@pytest.mark.parametrize("format", DTYPES)
def test_saturation_is_clipping_before_the_cast(format):
    """`floor` lets what is above the largest number saturate."""
    top = 2.0 ** np.floor(np.log2(LARGEST[format]))
    values = np.linspace(top, 2 * top, 64, endpoint=False, dtype=np.float32).reshape(-1, 2)
    values[:, 1] = 2 * top - values[:, 1] + top / 8
    values = values[values.max(-1) < 2 * top]
    q = quantize(values, format, rule="floor", block=2)
    clipped = np.clip(values, -LARGEST[format], LARGEST[format]).astype(DTYPES[format])
    assert (np.abs(values) > LARGEST[format]).any()
    np.testing.assert_array_equal(np.asarray(q.elements), clipped.view(np.uint8))


def _ceil_byte(quotient):
    """Exponent byte of the power of two at or above a float32, as kernels compute it."""
    bits = patterns(quotient).astype(np.int64)
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    return exponent + np.where(exponent == 0, fraction > 0x400000, fraction > 0)


@pytest.mark.parametrize("format", FORMATS)
def test_rceil_is_the_float32_quotient(format):
    """Around every boundary, and every 64th magnitude of the exponents where it is subnormal."""
    emax = int(np.floor(np.log2(LARGEST[format])))
    low = np.arange(0, (emax + 3) << 23, 64, dtype=np.uint32)
    amax = np.concatenate([magnitudes(), floats(low)])
    amax = amax[np.isfinite(amax)][:, None]
    quotient = amax / np.float32(LARGEST[format])
    assert quotient[1, 0] > 0 or format != "mxint8", "NumPy flushes subnormals here"
    q = quantize(amax, format, rule="rceil", block=1)
    np.testing.assert_array_equal(np.asarray(q.scales), np.minimum(_ceil_byte(quotient), 254))


@pytest.mark.parametrize(
    ("format", "pattern"),
    [("mxfp8_e4m3", 0x04600001), ("mxfp8_e5m2", 0x07E00001), ("mxfp4_e2m1", 0x01400001)],
)
def test_the_one_magnitude_where_rceil_is_not_the_formula(format, pattern):
    near = floats([[pattern - 1], [pattern], [pattern + 1]])
    wanted = {"rceil": [0, 0, 1], "rceil_real": [0, 1, 1]}
    for rule, bytes in wanted.items():
        assert quantize(near, format, rule=rule, block=1).scales[:, 0].tolist() == bytes


def test_e8m0_is_what_ml_dtypes_reads():
    scales = np.arange(255, dtype=np.uint8)
    ones = np.full(255, 64, np.uint8)
    read = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    q = mx.Quantized(*map(jnp.asarray, (ones, scales)), "mxint8", (-1,), (1,))
    np.testing.assert_array_equal(patterns(q.dequantize()), patterns(read.astype(np.float32)))
