"""Checks of `quantize`: along which axis blocks lie, where they end, and sizes past one tile."""

import numpy as np

from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._quantize_cases import block_case
from moe_ref.conformance.suite._quantize_data import BLOCK, SHAPE, as_dtype, signs, spread
from moe_ref.conformance.suite._quantize_values import check

# Two factors for each row: neighbours differ, and so do those 32, 128 or 256 rows on.
_FACTORS = 2.0 ** np.array([0, 5, -3, 2, 7, -6, 4])


def _by_row(rng, shape, dtype):
    """Every row of another magnitude, every block of another one."""
    x = rng.uniform(0.5, 1, shape) * signs(rng, shape)
    rows = np.arange(int(np.prod(shape[:-1]))).reshape(*shape[:-1], 1)
    blocks = np.arange(shape[-1]) // BLOCK
    return as_dtype(x * _FACTORS[(rows + 3 * blocks) % len(_FACTORS)], dtype)


def _square(rng, dtype, budget):
    yield block_case("as many rows as columns", _by_row(rng, (96, 96), dtype))
    yield block_case("32 rows, 32 columns", _by_row(rng, (BLOCK, BLOCK), dtype), once=True)
    # Kernels have other code for whole tiles.
    yield block_case("128 rows, 128 columns", _by_row(rng, (128, 128), dtype), once=True)


def _ranks(rng, dtype, budget):
    yield block_case("3 axes", _by_row(rng, (3, 5, 64), dtype))
    for label, shape in (("3 axes, all as long", (32, 32, 32)), ("4 axes", (2, 2, 3, 96))):
        yield block_case(label, _by_row(rng, shape, dtype), once=True)
    yield block_case("1 axis", _by_row(rng, (96,), dtype), once=True)


def _ragged(rng, dtype, budget):
    for length in (1, 31, 33, 100):
        x = _by_row(rng, (5, length), dtype)
        # The values that a block would take from elsewhere are larger than its own.
        x[:, :1] *= np.array(64, x.dtype)
        yield block_case(f"{length} columns", x)


def _rows(rng, dtype, budget):
    for shape in ((1, 32), (31, 160), (33, 64), (127, 64), (129, 96), (300, 64)):
        yield block_case(f"{shape[0]} rows", _by_row(rng, shape, dtype))


def _columns(rng, dtype, budget):
    for shape in ((1, 32), (31, 160), (5, 2080), (1, 4096)):
        yield block_case(f"{shape[1]} columns", _by_row(rng, shape, dtype))
    if budget == "thorough":
        yield block_case("257 rows, 8192 columns", spread(rng, (257, 8192), dtype))


def _nothing(rng, dtype, budget):
    yield block_case("no rows", np.zeros((0, SHAPE[1]), dtype_of(dtype)))


CHECKS = (
    check(30, "Blocks follow their axis and not the shape, and so do scales.", _square),
    check(31, "It takes 1, 3 and 4 axes.", _ranks),
    check(
        32,
        "A last block that is short is as if zeros followed, in each row by itself.",
        _ragged,
        may_refuse=True,
        formula="b of the values that are there; nothing of other rows",
    ),
    check(33, "It takes any number of rows: one, odd ones, and more than a tile.", _rows),
    check(34, "It takes one block, an odd number of them, and thousands of columns.", _columns),
    check(35, "No rows give no codes and no scales.", _nothing, may_refuse=True),
)
