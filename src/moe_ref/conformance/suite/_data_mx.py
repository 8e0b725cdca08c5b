"""Random inputs that tell MX blocks apart.

Gaussian data does not: scales that are powers of two leave four significant bits unchanged, and a
kernel that quantises twice, or along another axis, is right about most of them.
"""

import numpy as np

from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._quantize_data import BLOCK, boundaries

Rng = np.random.Generator

# Powers of two on either side of 1 that a factor may take.
_SPAN = {"float16": 3}
# How many powers of two below the largest of a block its small values lie: among the subnormal
# numbers of FP4 and FP6, of E3M2, of E4M3, of E5M2.
_DEPTHS = (2, 6, 15, 15, 16, 31)


def span(dtype: str) -> int:
    """The largest exponent of a factor that results of the dtype have room for."""
    return _SPAN.get(dtype, 20)


def powers(rng: Rng, shape: int | tuple[int, ...], dtype: str) -> np.ndarray:
    """Powers of two, as far from 1 on either side as the dtype has room for."""
    limit = span(dtype)
    return 2.0 ** rng.integers(-limit, limit + 1, shape)


def by_block(factors: np.ndarray, length: int) -> np.ndarray:
    """One factor for each block, spread over `length` values."""
    return np.repeat(factors, BLOCK)[:length]


def blocks(length: int) -> int:
    """Number of blocks in `length` values."""
    return -(-length // BLOCK)


def stepped(rng: Rng, rows: int, length: int, dtype: str, depths=_DEPTHS) -> np.ndarray:
    """Rows whose blocks begin with their largest value, on one side of a step of some rule.

    What follows is so small that it is rounded to multiples of the smallest number of a format
    times the scale: a sum that leaves the first values out tells what the scales are.

    Args:
        rng: draws the numbers.
        rows: how many.
        length: of each.
        dtype: of the result.
        depths: how far below the first value the others are, as powers of two, in turn.

    Returns:
        [rows, length].
    """
    largest = rng.choice(boundaries(dtype), (rows, blocks(length)))
    largest = largest * 2.0 ** rng.integers(-3, 4, largest.shape)
    deep = np.asarray(depths)[np.arange(rows) % len(depths)]
    small = rng.uniform(1, 2, (rows, length)) * rng.choice([-1, 1], (rows, length))
    x = small * np.repeat(largest, BLOCK, axis=1)[:, :length] * 2.0 ** -deep[:, None].astype(float)
    x[:, ::BLOCK] = largest
    return x.astype(dtype_of(dtype))


def tiny(rng: Rng, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal float32 numbers so small that every scale byte is 0, which means 2^-127."""
    size = rng.uniform(1, 8, shape) * rng.choice([-1, 1], shape)
    return (size * 2.0**-122).astype(dtype_of(dtype))
