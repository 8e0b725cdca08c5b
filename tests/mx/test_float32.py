"""Products and quotients of float32 in integers, and in the oracle, against exact fractions."""

from fractions import Fraction

import jax
import numpy as np
import pytest

from moe_ref.mx import _float32
from moe_ref.oracle import _mx_scaled
from mx.data import floats, patterns

OPERATIONS = {
    "product": (_float32.multiply, np.multiply, _mx_scaled.product),
    "quotient": (_float32.divide, np.divide, _mx_scaled.quotient),
}
SPECIAL = [0, 1, 2, 3, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]


def operands():
    """Every pair of special numbers; any magnitudes; and such that results are subnormal."""
    rng = np.random.default_rng(0)
    some = rng.integers(0, 0x7F800000, (2, 200_000), np.uint32)
    small = rng.integers(0, 0x30000000, (2, 100_000), np.uint32)
    small[1] += 0x3F800000 - small[0] & 0x7F800000  # of exponents that add up to few powers of two
    few = np.array(np.meshgrid(SPECIAL, SPECIAL), np.uint32).reshape(2, -1)
    return np.concatenate([few, some, small, small[::-1]], 1)


A, B = operands()


def canonical(bits):
    return np.where(bits > 0x7F800000, np.uint32(0x7FC00000), bits & 0x7FFFFFFF)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_the_processor(name):
    """NumPy's float32 is IEEE 754's, subnormals included, in a thread that does not flush them."""
    ours, theirs, oracle = OPERATIONS[name]
    with np.errstate(all="ignore"):
        wanted = theirs(floats(A), floats(B))
    assert ((wanted > 0) & (wanted < 2.0**-126)).sum() > 1000, "NumPy flushes subnormals here"
    np.testing.assert_array_equal(np.asarray(jax.jit(ours)(A, B)), canonical(patterns(wanted)))
    exact = oracle(floats(A).astype(np.float64), floats(B).astype(np.float64))
    np.testing.assert_array_equal(exact, wanted.astype(np.float64))


def _nearest(value):
    """The float32 number nearest to a positive fraction, ties to even, as a fraction."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= value < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, -126) - 23)
    return round(value / step) * step


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_fractions_rounded_once(name):
    ours, _, _ = OPERATIONS[name]
    rng = np.random.default_rng(1)
    chosen = rng.choice(
        np.flatnonzero((A > 0) & (B > 0) & (A < 0x7F800000) & (B < 0x7F800000)), 999
    )
    results = floats(jax.jit(ours)(A[chosen], B[chosen]))
    for a, b, result in zip(floats(A[chosen]), floats(B[chosen]), results, strict=True):
        one, other = Fraction(float(a)), Fraction(float(b))
        wanted = _nearest(one * other if name == "product" else one / other)
        if wanted >= 2**128:
            assert result == np.inf
        else:
            assert Fraction(float(result)) == wanted


def test_quotients_of_all_significands_by_the_largest_numbers_of_formats():
    """What FP8 divides by: every significand, where nothing is subnormal."""
    significands = np.arange(0x3F800000, 0x40000000, dtype=np.uint32)
    for largest in (448.0, 57344.0):
        ours = jax.jit(_float32.divide)(significands, patterns(np.float32(largest)))
        wanted = patterns(floats(significands) / np.float32(largest))
        np.testing.assert_array_equal(np.asarray(ours), wanted)


def test_products_rounded_to_eight_bits():
    """Once, not by way of float32."""
    a, b = floats(A[:, None] & 0x7FFFFFFF)[:, 0], floats(B)
    kept = np.isfinite(a) & np.isfinite(b)
    exact = a[kept].astype(np.float64) * b[kept].astype(np.float64)
    step = np.maximum(np.frexp(exact)[1] - 1, -126) - 7
    wanted = np.ldexp(np.rint(np.ldexp(exact, -step)), step)
    ours = floats(jax.jit(_float32.multiply, static_argnums=2)(A[kept], B[kept], 8))
    wanted = np.where(wanted >= 2.0**128, np.inf, wanted)
    np.testing.assert_array_equal(ours.astype(np.float64), wanted)
    assert not (patterns(ours) & 0xFFFF).any()
