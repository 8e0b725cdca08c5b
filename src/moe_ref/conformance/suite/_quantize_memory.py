"""Checks of `quantize`: what a call does to memory, and memory to a call."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance.suite import _quantize_cases as cases
from moe_ref.conformance.suite._quantize_data import BLOCK, by_row
from moe_ref.conformance.suite._quantize_elsewhere import (
    in_matrices,
    in_other_axes,
    short_blocks,
)
from moe_ref.conformance.suite._quantize_judge import judge_bytes
from moe_ref.conformance.suite._quantize_values import check
from moe_ref.conformance.suite._related import chained, each_of, in_manners, unchanged

# Of a call and of the one after it: fewer rows, fewer columns, both, and short last blocks.
_FEWER = (
    ((300, 64), (33, 64)),
    ((1, 4096), (1, 32)),
    ((128, 128), (32, 32)),
    ((5, 2080), (5, 100)),
    ((5, 100), (5, 33)),
    ((5, 31), (5, 1)),
)


def _turned(case: Case) -> dict[str, Case]:
    """The other way round, so that every block and every value is another one."""
    return {"later": case.replace(x=np.flip(case.arrays["x"]).copy())}


def _shrinking(rng, dtype, budget) -> Iterator[Case]:
    """Large values and NaN, and smaller arrays of small values to be called after them."""
    for shape, fewer in _FEWER:
        x, later = by_row(rng, shape, dtype), by_row(rng, fewer, dtype)
        factor = np.array(16, x.dtype)
        x *= factor
        x[::3, :: 2 * BLOCK] = np.nan
        label = f"{list(fewer)} after {list(shape)}"
        yield cases.block_case(label, x).replace(later=later / factor)


def _smaller(case: Case) -> dict[str, Case]:
    arrays = {name: array for name, array in case.arrays.items() if name != "later"}
    return {"later": dataclasses.replace(case, arrays=arrays | {"x": case.arrays["later"]})}


def _anywhere(rng, dtype, budget) -> Iterator[Case]:
    for inputs in (cases.wide, cases.nans, cases.tiny, cases.signed_zeros):
        yield from inputs(rng, dtype, budget)
    for shape in ((33, 64), (3, 5, 64), (5, 33)):
        yield cases.block_case(str(list(shape)), by_row(rng, shape, dtype))


# What a kernel may be tempted to clean up, or to fill up, where it lies.
_TEMPTING = chained(
    cases.nans,
    cases.infinities,
    cases.nans_and_infinities,
    cases.zeros,
    cases.signed_zeros,
    cases.tiny,
    cases.huge,
    in_matrices(cases.infinities),
    in_other_axes(cases.infinities),
    short_blocks,
)

CHECKS = (
    check(
        50,
        "Codes and scales stay what they are when another call follows.",
        in_manners(cases.wide, "together"),
        each_of(judge_bytes, _turned),
        related=_turned,
        formula="q(a), q(b), then both are read",
    ),
    check(
        51,
        "The input holds the same bits after the call.",
        in_manners(_TEMPTING, "watched"),
        unchanged,
        may_refuse=True,
        formula="bits of x, before and after",
    ),
    check(
        52,
        "Bytes are right where the input is a transposed view or has gaps.",
        in_manners(_anywhere, "transposed", "spaced"),
        needs="any_layout",
        may_refuse=True,
        formula="q(a), a with other strides",
    ),
    check(
        53,
        "Bytes do not depend on a call before, of more rows or columns.",
        in_manners(_shrinking, "together"),
        each_of(judge_bytes, _smaller),
        related=_smaller,
        may_refuse=True,
        formula="q(a), q(b), b with fewer rows or columns",
    ),
)
