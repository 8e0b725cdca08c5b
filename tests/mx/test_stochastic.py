"""Elements rounded at random: exactly as often as they should be, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn

from moe_ref import mx
from moe_ref.mx import _bits
from moe_ref.mx._format import FORMATS as FORMS
from mx.data import FORMATS, numbers, patterns, quantize, wide

EVERY = mx.formats()


def key(seed):
    return jax.random.key(seed)


def _element(format):
    """The MX format with these elements."""
    return {"nvfp4": "mxfp4_e2m1"}.get(format, format if format in FORMS else "mx" + format)


def test_a_value_goes_up_where_its_random_bits_are_below_what_is_dropped():
    """Against Python's integers, at the boundary and anywhere, for 1 to 90 dropped bits."""
    rng = np.random.default_rng(0)
    rows = []
    for dropped in range(1, 91):
        for significand in [1 << 23, (1 << 24) - 1, 0, *rng.integers(1 << 23, 1 << 24, 5).tolist()]:
            count = min(dropped, 64)
            limit = (significand % (1 << dropped)) >> (dropped - count)
            limit = limit << (64 - count)  # as a number of 64 bits
            for number in (
                limit - 1,
                limit,
                0,
                1 << 63,
                (1 << 64) - 1,
                int(rng.integers(1 << 63)) * 2,
            ):
                if 0 <= number < 1 << 64:
                    rows.append(
                        (significand, dropped, number >> 32, number % 2**32, number < limit)
                    )
    significand, dropped, high, low, wanted = np.array(rows, object).T
    words = (jnp.asarray(w.astype(np.uint32)) for w in (high, low))
    up = _bits._goes_up(
        jnp.asarray(significand.astype(np.uint32)), jnp.asarray(dropped.astype(np.int32)), *words
    )
    np.testing.assert_array_equal(np.asarray(up) == 1, wanted.astype(bool))
    assert 1000 < wanted.sum() < len(wanted) - 1000


@pytest.mark.parametrize("format", FORMATS)
def test_the_mean_over_all_random_numbers_is_the_value(format):
    """Equality: 256 numbers that differ in their first eight bits, values of as many more bits."""
    form, table = FORMS[format], numbers(format)
    fractions = np.arange(0, 256, 37) / 256
    steps = np.diff(table)[:, None]
    values = (table[:-1, None] + steps * fractions).ravel()
    values = np.concatenate([values, -values]).astype(np.float32)
    high = jnp.arange(256, dtype=jnp.uint32)[:, None] << 24
    high, pattern = jnp.broadcast_arrays(high, jnp.asarray(patterns(values))[None])
    low = jnp.full(high.shape, 0xFFFFFFFF, jnp.uint32)
    codes = jax.jit(_bits.encode, static_argnums=2)(pattern, jnp.int32(127), form, (high, low))
    q = mx.Quantized(codes, jnp.full((256, 1), 127, jnp.uint8), format, (-1,), (len(values),))
    mean = np.asarray(q.dequantize(), np.float64).mean(0)
    np.testing.assert_array_equal(mean, values.astype(np.float64))


def _drawn(format, draws=1024):
    """Many copies of one block, all drawn at once: what may be written, and what was."""
    rng = np.random.default_rng(2)
    top = numbers(_element(format))[-1]
    block = (rng.uniform(-1, 1, 32) * top * 2.0 ** -rng.integers(0, 6, 32)).astype(np.float32)
    block[:2] = top, -top  # the scale is 1, or next to it
    x = np.broadcast_to(block, (draws, 32))
    q = quantize(x, format, block=32, key=key(0))
    return x, q, quantize(x, format, block=32)


@pytest.mark.parametrize("format", EVERY)
def test_unbiased_and_independent(format):
    """Sums of errors, for each value, are within six standard deviations; so are their squares."""
    x, q, nearest = _drawn(format)
    values = np.asarray(q.dequantize(), np.float64)
    # What a value is rounded from, exactly: with a scale of 1 itself, else by float32 operations.
    unit = 1.0
    if format == "nvfp4":
        unit = float(q.tensor_scale) * float(np.asarray(q.scales).view(float8_e4m3fn)[0, 0])
    table = np.concatenate([-numbers(_element(format))[::-1], numbers(_element(format))[1:]]) * unit
    exact = x[0].astype(np.float64)
    inner = np.arange(2, 32)
    below = table[np.searchsorted(table, exact[inner], side="right") - 1]
    above = table[np.searchsorted(table, exact[inner], side="right")]
    drawn = values[:, inner]
    assert ((drawn == as_stored(below)) | (drawn == as_stored(above))).all()
    share = (exact[inner] - below) / (above - below)
    ups = (drawn == as_stored(above)).sum(0)
    deviation = np.sqrt(len(x) * share * (1 - share))
    assert (np.abs(ups - len(x) * share) <= 6 * deviation).all()
    total = (ups - len(x) * share).sum() / np.sqrt((deviation**2).sum())
    assert abs(total) <= 6
    # Neighbours in a block are drawn apart: of magnitudes that grow, a row has as many more or
    # fewer than expected as independent ones.
    grown = ((drawn == as_stored(above)) - share) * np.sign(exact[inner])
    row = grown.sum(-1) ** 2 / (share * (1 - share)).sum()
    assert abs(row.mean() - 1) <= 6 * np.sqrt(2 / len(x))
    # And to nearest the same statistic fails.
    assert (np.abs((unit_ups(nearest, above, inner) - share) * len(x)) > 6 * deviation).any()


def as_stored(values):
    return values.astype(np.float32).astype(np.float64)


def unit_ups(nearest, above, inner):
    return np.asarray(nearest.dequantize(), np.float64)[0, inner] == as_stored(above)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxint8", "nvfp4", "fp8_e4m3"])
def test_the_same_key_gives_the_same_bytes_eager_and_jitted(format):
    x, first, _ = _drawn(format)
    again = jax.jit(lambda x, k: quantize(x, format, block=32, key=k))(x, key(0))
    other = quantize(x, format, block=32, key=key(1))
    np.testing.assert_array_equal(np.asarray(first.elements), np.asarray(again.elements))
    assert (np.asarray(first.elements) != np.asarray(other.elements)).any()


@pytest.mark.parametrize("format", FORMATS)
def test_numbers_of_the_format_stay(format):
    """As they are written at random in a block whose scale is 1."""
    _, q, nearest = _drawn(format)
    values = q.dequantize()
    again = quantize(values, format, block=32, key=key(7))
    np.testing.assert_array_equal(np.asarray(again.elements), np.asarray(q.elements))
    assert (np.asarray(q.elements) != np.asarray(nearest.elements)).any()


SPECIAL = [("mxfp4_e2m1", "te"), ("mxfp8_e4m3", "poison"), ("nvfp4", "te"), ("fp8_e4m3", "poison")]


@pytest.mark.parametrize(("format", "nonfinite"), SPECIAL)
def test_scales_zeros_and_what_is_not_finite_stay(format, nonfinite):
    x = wide(128)[:, :16].copy()
    x[3], x[4] = -0.0, 0.0
    options = {"block": 16, "nonfinite": nonfinite}
    nearest = quantize(x, format, **options)
    drawn = quantize(x, format, key=key(3), **options)
    np.testing.assert_array_equal(
        np.asarray(nearest.scales).view(np.uint8), np.asarray(drawn.scales).view(np.uint8)
    )
    codes, others = np.asarray(nearest.elements), np.asarray(drawn.elements)
    assert (codes != others).any()
    special = ~np.isfinite(x)
    if nonfinite == "poison":
        special = np.broadcast_to(special.any(-1, keepdims=True), x.shape)
    special = special | (x == 0)
    np.testing.assert_array_equal(codes[special], others[special])


def test_a_legacy_key_and_vmap():
    x = jnp.asarray(wide(8), jnp.float32)
    old = quantize(x, "mxfp4_e2m1", key=jax.random.PRNGKey(0))
    new = quantize(x, "mxfp4_e2m1", key=key(0))
    np.testing.assert_array_equal(np.asarray(old.elements), np.asarray(new.elements))
    each = jax.vmap(lambda x, k: quantize(x, "nvfp4", key=k))(x, jax.random.split(key(0), 8))
    alone = quantize(x[5], "nvfp4", key=jax.random.split(key(0), 8)[5])
    np.testing.assert_array_equal(np.asarray(each.elements[5]), np.asarray(alone.elements))
    with pytest.raises(ValueError, match="`key` must be"):
        quantize(x, "nvfp4", key=0)
