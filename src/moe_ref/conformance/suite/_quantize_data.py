"""Values that tell quantisers apart, of any MX format and rule.

A case does not know for which format it will be judged, so each of these holds what is special in
all of them: the numbers next to every largest one, every boundary of every rule, every middle
between two codes.
"""

import itertools
import math

import numpy as np

from moe_ref.conformance.suite._data import dtype_of

Rng = np.random.Generator
Shape = tuple[int, ...]

BLOCK = 32
SHAPE = (48, 128)  # most cases share a shape: a kernel compiles once for it
# Of a format: bits stored after the point, exponent of the smallest normal and of the largest
# number, and the largest number.
FORMATS = (
    (3, -6, 8, 448.0),
    (2, -14, 15, 57344.0),
    (2, -2, 4, 28.0),
    (3, 0, 2, 7.5),
    (1, 0, 2, 6.0),
    (6, 0, 0, 127 / 64),
)
# Exponents that the largest magnitude of a block may have without anything special: its scale is a
# normal float32 number under every format, and so are the values of its elements.
_ORDINARY = {"float16": (-2, 14), "bfloat16": (-100, 119), "float32": (-100, 119)}
# The distance of a number in [1, 2) to the next one.
_STEP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
# Two factors for each row: neighbours differ, and so do those 32, 128 or 256 rows on.
_FACTORS = 2.0 ** np.array([0, 5, -3, 2, 7, -6, 4])


def signs(rng: Rng, shape: Shape) -> np.ndarray:
    """Either sign."""
    return rng.choice([-1.0, 1.0], shape)


def as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values in a dtype; in float16, which ends at 65504, cut off there."""
    if dtype == "float16":
        values = np.clip(values, -65504.0, 65504.0)
    with np.errstate(over="ignore"):
        return values.astype(dtype_of(dtype))


def by_block(factors: np.ndarray) -> np.ndarray:
    """One factor for each block, spread over its values."""
    return np.repeat(factors, BLOCK, axis=-1)


def blocks_of(shape: Shape) -> Shape:
    """How many blocks there are along each axis; the last axis is blocked."""
    return (*shape[:-1], -(-shape[-1] // BLOCK))


def powers(rng: Rng, shape: Shape, dtype: str) -> np.ndarray:
    """A power of two for each block, anywhere in the ordinary range, spread over its values."""
    low, high = _ORDINARY[dtype]
    exponent = rng.integers(low, high + 1, blocks_of(shape))
    return by_block(np.exp2(exponent.astype(np.float64)))[..., : shape[-1]]


def by_row(rng: Rng, shape: Shape, dtype: str) -> np.ndarray:
    """Every row of another magnitude, every block of another one."""
    x = rng.uniform(0.5, 1, shape) * signs(rng, shape)
    rows = np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    blocks = np.arange(shape[-1]) // BLOCK
    return as_dtype(x * _FACTORS[(rows + 3 * blocks) % len(_FACTORS)], dtype)


def spread(rng: Rng, shape: Shape, dtype: str, depth: int = 14) -> np.ndarray:
    """Blocks of every magnitude, their values over a range of `depth` powers of two below it."""
    below = np.exp2(-rng.integers(0, depth + 1, shape).astype(np.float64))
    values = signs(rng, shape) * rng.uniform(1, 2, shape) * below
    return as_dtype(values * powers(rng, shape, dtype), dtype)


def amax_at(rng: Rng, largest: np.ndarray, dtype: str) -> np.ndarray:
    """Blocks whose largest magnitudes are given, at a random place; the others are below.

    Args:
        rng: draws the rest.
        largest: one for each block [rows, blocks], in float64.
        dtype: of the result.
    """
    shape = (*largest.shape, BLOCK)
    values = rng.uniform(0.25, 1, shape) * np.exp2(-rng.integers(1, 9, shape).astype(np.float64))
    values *= largest[..., None]
    at = rng.integers(0, BLOCK, (*largest.shape, 1))
    np.put_along_axis(values, at, largest[..., None], axis=-1)
    values = values * signs(rng, shape)
    return as_dtype(values.reshape(*largest.shape[:-1], -1), dtype)


def boundaries(dtype: str) -> np.ndarray:
    """Numbers in [1/2, 4] next to each one from which some rule takes the next scale."""
    edges = {1.0}
    for mantissa, _, emax, largest in FORMATS:
        edges |= {largest / 2.0**emax, 2 - 2.0 ** -(mantissa + 1)}
    step = _STEP[dtype]
    return np.array([edge + n * step for edge, n in itertools.product(sorted(edges), range(-2, 3))])


def nan_patterns(dtype: str) -> np.ndarray:
    """Quiet NaN of either sign: what it usually is, with another bit of the fraction, with all."""
    fraction = {"float16": 10, "bfloat16": 7, "float32": 23}[dtype]
    whole, half = (1 << fraction) - 1, 1 << (fraction - 1)
    width = np.uint32 if dtype == "float32" else np.uint16
    low = np.array([half, half | 1, whole]) | (0x7C00 if dtype == "float16" else 0xFF << fraction)
    sign = 1 << (31 if dtype == "float32" else 15)
    return np.concatenate([low, low | sign]).astype(width).view(dtype_of(dtype))


def middles(dtype: str) -> list[np.ndarray]:
    """For each format: middles between its numbers, what is next to them, and the numbers.

    They are divided by the power of two of the largest number, so that they lie in [0, 2).
    """
    found = []
    for mantissa, emin, emax, largest in FORMATS:
        first = np.arange(2 << mantissa) * 2.0 ** (emin - mantissa)
        octaves = [2.0**e * first[1 << mantissa :] for e in range(1, emax - emin + 1)]
        numbers = np.concatenate([first, *octaves])
        numbers = numbers[numbers <= largest]
        between = (numbers[1:] + numbers[:-1]) / 2
        step = np.exp2(np.floor(np.log2(between))) * _STEP[dtype]
        near = [between + n * step for n in (-1, 0, 1)]
        found.append(np.concatenate([*near, numbers]) / 2.0**emax)
    return found
