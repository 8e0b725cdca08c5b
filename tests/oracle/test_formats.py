"""Formats against the dtypes they describe."""

import ml_dtypes
import numpy as np
import pytest

from moe_ref.oracle._formats import FORMATS

DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
}
RNG = np.random.default_rng(0)
NUMBERS = np.concatenate(
    [
        RNG.standard_normal(500) * 2.0 ** RNG.integers(-160, 130, 500),
        RNG.standard_normal(500) * 2.0 ** RNG.integers(-30, 16, 500),
        [0.0, -0.0, 1.0, 1 + 2.0**-8, 1 + 2.0**-24, 1 + 2.0**-9 + 2.0**-40, 65504, 65519, 65520],
        [2.0**-126, 2.0**-149, 2.0**-150, 1.5 * 2.0**-150, 2.0**-133, 2.0**-134, 3.39e38, 3.4e38],
        [3.4028235e38, 3.4028236e38, np.inf, -np.inf, np.nan],
    ]
)


@pytest.mark.parametrize("name", DTYPES)
def test_nearest_is_the_cast(name):
    with np.errstate(over="ignore"):
        cast = NUMBERS.astype(DTYPES[name]).astype(np.float64)
        np.testing.assert_array_equal(FORMATS[name].nearest(NUMBERS), cast)


@pytest.mark.parametrize("name", DTYPES)
def test_half_ulp_is_half_the_gap_to_the_next_number(name):
    dtype, format = DTYPES[name], FORMATS[name]
    integer = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize]
    with np.errstate(over="ignore"):
        size = np.abs(NUMBERS.astype(dtype))
    size = size[size.astype(np.float64) < float(ml_dtypes.finfo(dtype).max)]
    if name == "float64":
        size = size[size > 0]  # half of its smallest step is no float64
    following = (size.view(integer) + integer(1)).view(dtype)
    gap = following.astype(np.float64) - size.astype(np.float64)
    np.testing.assert_array_equal(2 * format.half_ulp(size.astype(np.float64)), gap)


@pytest.mark.parametrize("name", DTYPES)
def test_constants(name):
    info, format = ml_dtypes.finfo(DTYPES[name]), FORMATS[name]
    assert format.max == float(info.max)
    assert format.smallest_normal == float(info.smallest_normal)
    assert 2 * format.unit == float(info.eps)
    assert format.half_ulp(np.array(np.inf)) == np.inf


@pytest.mark.parametrize(("name", "bits"), [("tf32", 11), ("e8m13", 14)])
def test_formats_inside_a_matrix_unit(name, bits):
    """Numbers of float32's range with fewer bits, to the nearest, ties to even."""
    assert set(FORMATS) == {*DTYPES, "tf32", "e8m13"}
    format = FORMATS[name]
    sizes = np.abs(NUMBERS)
    normal = NUMBERS[(sizes >= 2.0**-126) & (sizes < format.max)]
    fraction, exponent = np.frexp(normal)
    expected = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    np.testing.assert_array_equal(format.nearest(normal), expected)
    assert (np.abs(expected - normal) <= format.half_ulp(np.abs(normal))).all()
    assert format.unit == 2.0**-bits
    assert np.isposinf(format.nearest(np.array([3.4028235e38]))).all()
