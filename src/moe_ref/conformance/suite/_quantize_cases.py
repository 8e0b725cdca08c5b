"""Inputs of the checks of `quantize`: magnitudes, boundaries, zeros, what is not finite."""

import itertools
from collections.abc import Iterator

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance.suite._data import normal
from moe_ref.conformance.suite._quantize_data import (
    BLOCK,
    FORMATS,
    SHAPE,
    amax_at,
    as_dtype,
    blocks_of,
    boundaries,
    by_block,
    middles,
    nan_patterns,
    powers,
    signs,
    spread,
)

_BLOCKS = blocks_of(SHAPE)
_FINEST = {"float16": -24, "bfloat16": -133, "float32": -149}


def block_case(label: str, x: np.ndarray, **options) -> Case:
    """A case whose blocks lie along the last axis, until a kernel declares another one."""
    arrays = {"x": x, "axis": np.array(-1, np.int32), "block": np.array(BLOCK, np.int32)}
    return Case(label=label, arrays=arrays, **options)


def ordinary(rng, dtype, budget) -> Iterator[Case]:
    """Gaussian values."""
    yield block_case("normal", normal(rng, SHAPE, dtype))


def wide(rng, dtype, budget) -> Iterator[Case]:
    """Blocks of every magnitude, wide in themselves."""
    for _ in range(1 if budget == "smoke" else 8):
        yield block_case("blocks of all magnitudes", spread(rng, SHAPE, dtype))


def edges(rng, dtype, budget) -> Iterator[Case]:
    """Largest magnitudes on either side of where a rule takes the next scale."""
    near = boundaries(dtype)
    for _ in range(1 if budget == "smoke" else 8):
        largest = rng.permutation(np.resize(near, np.prod(_BLOCKS))).reshape(_BLOCKS)
        largest = largest * powers(rng, SHAPE, dtype)[:, ::BLOCK] / 2
        yield block_case("amax at a boundary", amax_at(rng, largest, dtype))


def ties(rng, dtype, budget) -> Iterator[Case]:
    """Middles between neighbouring numbers of a format, and what is next to them."""
    found = []
    for between, (_, _, emax, largest) in zip(middles(dtype), FORMATS, strict=True):
        inner = BLOCK - 2  # the largest number twice, so that blocks of 16 have it too
        values = rng.permutation(np.resize(between, -(-len(between) // inner) * inner))
        blocks = np.full((len(values) // inner, BLOCK), largest / 2.0**emax)
        blocks[:, 1:16], blocks[:, 17:] = np.split(values.reshape(-1, inner), 2, axis=1)
        found.append(blocks)
    blocks = np.resize(np.concatenate(found), (*_BLOCKS, BLOCK)).reshape(SHAPE)
    values = blocks * signs(rng, SHAPE) * powers(rng, SHAPE, dtype) / 4
    yield block_case("middles between numbers", as_dtype(values, dtype))


def saturating(rng, dtype, budget) -> Iterator[Case]:
    """Blocks of values next to their largest, above the largest number under some rule."""
    near = rng.choice([1.984375, 1.9921875], _BLOCKS)  # rounds to the power of two above
    largest = by_block(np.where(rng.random(_BLOCKS) < 0.5, rng.uniform(1.5, 2, _BLOCKS), near))
    values = largest * signs(rng, SHAPE)
    values[:, 1::2] *= rng.uniform(0.9, 1, values[:, 1::2].shape)
    yield block_case("near the largest", as_dtype(values * powers(rng, SHAPE, dtype) / 2, dtype))


def deep(rng, dtype, budget) -> Iterator[Case]:
    """Values so far below the largest that they are subnormal numbers of a format, or zero."""
    yield block_case("far below amax", spread(rng, SHAPE, dtype, depth=36))


def zeros(rng, dtype, budget) -> Iterator[Case]:
    """Blocks of nothing but zeros beside others."""
    x = normal(rng, SHAPE, dtype)
    for row in range(0, SHAPE[0], 3):
        column = row // 3 % _BLOCKS[1] * BLOCK
        x[row, column : column + BLOCK] = 0
    x[1] = 0
    yield block_case("zero blocks", x)
    yield block_case("nothing but zeros", np.zeros(SHAPE, x.dtype))


def signed_zeros(rng, dtype, budget) -> Iterator[Case]:
    """Zeros of either sign, and values of either sign that become zero."""
    x = normal(rng, SHAPE, dtype)
    x[:, 1::4] = as_dtype(signs(rng, x[:, 1::4].shape) * 0.0, dtype)
    small = signs(rng, x[:, 2::4].shape) * 2.0 ** (-14 if dtype == "float16" else -60)
    x[:, 2::4] = as_dtype(small, dtype)
    x[:, ::16] = as_dtype(signs(rng, x[:, ::16].shape), dtype)
    x[::5, :BLOCK] = as_dtype(signs(rng, x[::5, :BLOCK].shape) * 0.0, dtype)
    yield block_case("zeros of either sign", x)


def tiny(rng, dtype, budget) -> Iterator[Case]:
    """Subnormal values, and blocks so small that their scale is 2^-127, itself subnormal."""
    low = _FINEST[dtype]
    exponent = rng.integers(low, low + 26 + 23 * (dtype == "float32"), _BLOCKS)
    largest = rng.uniform(1, 2, _BLOCKS) * np.exp2(exponent.astype(np.float64))
    if dtype != "float16":
        largest[::5, 1] = 1e-40
    yield block_case("subnormal", amax_at(rng, largest, dtype))


def first_scales(rng, dtype, budget) -> Iterator[Case]:
    """Boundaries between the smallest scale bytes; for E4M3 0x04600001 as float32 is one."""
    if dtype == "float16":  # has no magnitudes as small
        return
    near = boundaries(dtype)[:, None] * 2.0 ** np.array([f[2] - 127 for f in FORMATS])
    scales = near[..., None] * np.array([1.0, 1.0, 2.0])
    largest = rng.permutation(scales.reshape(-1))
    rows = -(-len(largest) // (_BLOCKS[0] * _BLOCKS[1])) * _BLOCKS[0]
    largest = np.resize(largest, (rows, _BLOCKS[1]))
    for first in range(0, rows, _BLOCKS[0]):
        part = largest[first : first + _BLOCKS[0]]
        yield block_case("between scale bytes 0 and 1", amax_at(rng, part, dtype))


def huge(rng, dtype, budget) -> Iterator[Case]:
    """Largest magnitudes up to the end of the dtype, short of what `even` rounds to Inf."""
    top = 15 if dtype == "float16" else 127
    exponent = top - rng.integers(0, 8, _BLOCKS)
    largest = rng.uniform(1, 1.74, _BLOCKS) * np.exp2(exponent.astype(np.float64))
    yield block_case("near the end of the dtype", amax_at(rng, largest, dtype))


def largest_finite(rng, dtype, budget) -> Iterator[Case]:
    """The largest number of the dtype, and where rounding to a few bits gives Inf."""
    top = 15 if dtype == "float16" else 127
    edge = np.array([2 - 2.0 ** -(m + 1) for m, *_ in FORMATS] + [2 - 2.0**-7, 2 - 2.0**-23])
    step = 2.0**-23 if dtype == "float32" else 2.0**-7
    near = (edge[:, None] * (1 + step * np.arange(-1, 2))).reshape(-1)
    near = np.minimum(near, 2 - step)
    largest = rng.permutation(np.resize(near, np.prod(_BLOCKS))).reshape(_BLOCKS)
    yield block_case("the largest numbers", amax_at(rng, largest * 2.0**top, dtype))


def _poisoned(rng, label: str, dtype: str, *poison: float) -> Case:
    """One of `poison` in a block of every other row: at its beginning, its end, or between."""
    x = normal(rng, SHAPE, dtype)
    for row in range(0, SHAPE[0], 2):
        place = (0, BLOCK - 1, int(rng.integers(1, BLOCK - 1)))[row // 2 % 3]
        column = BLOCK * int(rng.integers(SHAPE[1] // BLOCK)) + place
        x[row, column] = poison[row // 2 // 3 % len(poison)]
    return block_case(label, x)


def nans(rng, dtype, budget) -> Iterator[Case]:
    """A NaN of either sign in some blocks, and of any bits."""
    yield _poisoned(rng, "NaN in some blocks", dtype, np.nan, -np.nan)
    x = normal(rng, SHAPE, dtype)
    x[3, :BLOCK] = np.nan
    yield block_case("a block of NaN", x)
    x = normal(rng, SHAPE, dtype)
    patterns = nan_patterns(dtype)
    for row, pattern in zip(range(0, SHAPE[0], 3), itertools.cycle(patterns), strict=False):
        x[row, BLOCK * int(rng.integers(SHAPE[1] // BLOCK)) + row % BLOCK] = pattern
    yield block_case("NaN of other bits", x)


def infinities(rng, dtype, budget) -> Iterator[Case]:
    """An Inf of either sign in some blocks."""
    yield _poisoned(rng, "Inf in some blocks", dtype, np.inf, -np.inf)


def nans_and_infinities(rng, dtype, budget) -> Iterator[Case]:
    """Both in one block, in either order."""
    x = normal(rng, SHAPE, dtype)
    for row in range(0, SHAPE[0], 2):
        at = BLOCK * int(rng.integers(SHAPE[1] // BLOCK)) + rng.permutation(BLOCK)[:2]
        x[row, at] = (np.nan, signs(rng, ()) * np.inf)
    yield block_case("NaN and Inf in one block", x)
