"""Checks of `quantize`: along which axis blocks lie, where they end, and sizes past one tile."""

import numpy as np

from moe_ref._counted import counted
from moe_ref.conformance.suite import _quantize_cases as cases
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._quantize_cases import block_case
from moe_ref.conformance.suite._quantize_data import BLOCK, SHAPE, by_row, spread
from moe_ref.conformance.suite._quantize_elsewhere import (
    in_matrices,
    in_other_axes,
    short_blocks,
)
from moe_ref.conformance.suite._quantize_values import check
from moe_ref.conformance.suite._related import chained

_FINITE = (
    cases.wide,
    cases.edges,
    cases.ties,
    cases.saturating,
    cases.deep,
    cases.huge,
    cases.largest_finite,
)
_SMALL = (cases.signed_zeros, cases.tiny, cases.first_scales)
_NOT_FINITE = (cases.nans, cases.infinities, cases.nans_and_infinities)


def _square(rng, dtype, budget):
    yield block_case("as many rows as columns", by_row(rng, (96, 96), dtype))
    yield block_case("32 rows, 32 columns", by_row(rng, (BLOCK, BLOCK), dtype), once=True)
    # Kernels have other code for whole tiles.
    yield block_case("128 rows, 128 columns", by_row(rng, (128, 128), dtype), once=True)


def _ranks(rng, dtype, budget):
    yield block_case("3 axes", by_row(rng, (3, 5, 64), dtype))
    for label, shape in (("3 axes, all as long", (32, 32, 32)), ("4 axes", (2, 2, 3, 96))):
        yield block_case(label, by_row(rng, shape, dtype), once=True)
    yield block_case("1 axis", by_row(rng, (96,), dtype), once=True)


def _ragged(rng, dtype, budget):
    for length in (1, 31, 33, 100):
        x = by_row(rng, (5, length), dtype)
        # The values that a block would take from elsewhere are larger than its own.
        x[:, :1] *= np.array(64, x.dtype)
        yield block_case(counted(length, "column"), x)


def _past_a_tile(rng, dtype, budget):
    """A short last block past a tile of 128 rows and 128 columns; some of them NaN, some zero."""
    x = by_row(rng, (131, 200), dtype)
    x[::5, -1] = np.nan
    x[1::5, -8:] = 0
    yield block_case("131 rows, 200 columns", x)


def _short_in_3_axes(rng, dtype, budget):
    x = by_row(rng, (2, 3, 33), dtype)
    x[:, 0, 0] = np.inf  # what follows the row before
    x[0, 1, -1] = np.nan
    yield block_case("3 axes, 33 columns", x)


def _rows(rng, dtype, budget):
    for shape in ((1, 32), (31, 160), (33, 64), (127, 64), (129, 96), (300, 64)):
        yield block_case(counted(shape[0], "row"), by_row(rng, shape, dtype))


def _columns(rng, dtype, budget):
    for shape in ((1, 32), (31, 160), (5, 2080), (1, 4096)):
        yield block_case(counted(shape[1], "column"), by_row(rng, shape, dtype))
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
        chained(_ragged, short_blocks, _past_a_tile, _short_in_3_axes),
        may_refuse=True,
        formula="b of the values that are there; nothing of other rows",
    ),
    check(33, "It takes any number of rows: one, odd ones, and more than a tile.", _rows),
    check(34, "It takes one block, an odd number of them, and thousands of columns.", _columns),
    check(35, "No rows give no codes and no scales.", _nothing, may_refuse=True),
    check(
        36,
        "Finite blocks of every kind are right in matrices of every shape.",
        in_matrices(*_FINITE),
    ),
    check(
        37,
        "So are zeros of either sign, subnormal values and the smallest scales.",
        in_matrices(*_SMALL),
    ),
    check(
        38,
        "So are blocks with NaN, Inf or both, and the others beside them.",
        in_matrices(*_NOT_FINITE),
    ),
    check(
        39,
        "All of these are right in arrays of 1, 3 and 4 axes.",
        in_other_axes(*_FINITE, *_SMALL, *_NOT_FINITE),
        may_refuse=True,
    ),
)
