"""Scales in the hardware's order, groups that start at whole blocks, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import mx


@pytest.mark.parametrize(
    ("rows", "blocks"), [(128, 4), (256, 8), (1, 1), (130, 5), (0, 4), (96, 3)]
)
def test_swizzle_is_the_formula_and_has_an_inverse(rows, blocks):
    scales = np.random.default_rng(0).integers(1, 256, (rows, blocks), np.uint8)
    swizzled = np.asarray(mx.swizzle_scales(jnp.asarray(scales)))
    across = -(-blocks // 4)
    wanted = np.zeros(-(-rows // 128) * across * 512, np.uint8)
    for r in range(rows):
        for c in range(blocks):
            tile = (r // 128) * across + c // 4
            wanted[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales[r, c]
    np.testing.assert_array_equal(swizzled, wanted)
    back = mx.unswizzle_scales(jnp.asarray(swizzled), rows, blocks)
    np.testing.assert_array_equal(np.asarray(back), scales)


@pytest.mark.parametrize("alignment", [32, 128])
@pytest.mark.parametrize("sizes", [[5, 0, 65], [32, 32, 6], [0, 0, 0], [1, 1, 1], [70, 0, 0]])
def test_groups_are_padded_apart(sizes, alignment):
    rows = 70
    x = np.arange(1.0, rows + 1)
    to = np.asarray(mx.aligned_rows(jnp.asarray(sizes), rows=rows, alignment=alignment))
    length = mx.aligned_length(rows, experts=3, alignment=alignment)
    wanted, start, place = np.zeros(length), 0, 0
    for size in sizes:
        wanted[place : place + size] = x[start : start + size]
        start, place = start + size, place + -(-size // alignment) * alignment
    padded = jnp.zeros(length).at[to].set(x, mode="drop")
    np.testing.assert_array_equal(np.asarray(padded), wanted)
    back = padded.at[to].get(mode="fill", fill_value=0)
    np.testing.assert_array_equal(np.asarray(back), np.where(np.arange(rows) < sum(sizes), x, 0))
    assert (to[sum(sizes) :] == length).all()


def test_the_length_is_enough_and_no_more():
    """Of all ways to share few rows, the worst needs exactly the length."""
    for rows in range(9):
        shares = [(a, b, rows - a - b) for a in range(rows + 1) for b in range(rows + 1 - a)]
        worst = max(sum(-(-size // 4) * 4 for size in share) for share in shares)
        assert mx.aligned_length(rows, experts=3, alignment=4) == worst


def test_wrong_use():
    with pytest.raises(ValueError, match="`alignment` must be at least 1; got 0"):
        mx.aligned_length(4, experts=1, alignment=0)
    with pytest.raises(ValueError, match="`swizzled` must be 512 bytes; got 511 bytes"):
        mx.unswizzle_scales(jnp.zeros(511, jnp.uint8), 3, 3)
    with pytest.raises(ValueError, match="`scales` must be UInt8"):
        mx.swizzle_scales(jnp.zeros((3, 3), jnp.int32))


def test_rows_stay_inside_where_sizes_wrap():
    rows = 2**16
    sizes = jnp.full(2**16, rows, jnp.int32)
    to = jax.jit(lambda sizes: mx.aligned_rows(sizes, rows=rows, alignment=32))(sizes)
    assert np.array_equal(to, np.arange(rows))
