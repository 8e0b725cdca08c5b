"""Checks of `quantize`: what a call does to memory, and memory to a call."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case, Manner
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import _quantize_cases as cases
from moe_ref.conformance.suite._quantize_data import BLOCK, by_row
from moe_ref.conformance.suite._quantize_elsewhere import (
    chained,
    in_matrices,
    in_other_axes,
    short_blocks,
)
from moe_ref.conformance.suite._quantize_judge import judge_bytes, results_of
from moe_ref.conformance.suite._quantize_values import check

# Of a call and of the one after it: fewer rows, fewer columns, both, and short last blocks.
_FEWER = (
    ((300, 64), (33, 64)),
    ((1, 4096), (1, 32)),
    ((128, 128), (32, 32)),
    ((5, 2080), (5, 100)),
    ((5, 100), (5, 33)),
    ((5, 31), (5, 1)),
)


def _in_manners(inputs: Callable[..., Iterable[Case]], *manners: Manner) -> Callable[..., Any]:
    """The same inputs, each called in every one of some manners."""

    def changed(rng, dtype, budget) -> Iterator[Case]:
        for case in inputs(rng, dtype, budget):
            for manner in manners:
                yield dataclasses.replace(case, manner=manner, label=f"{case.label}, {manner}")

    return changed


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


def _judge_both(related: Callable[[Case], dict[str, Case]]) -> Callable[..., Judgement]:
    def judge(case: Case, outputs: Outputs) -> Judgement:
        later = judge_bytes(related(case)["later"], results_of("later", outputs))
        return all_of(judge_bytes(case, outputs), later)

    return judge


def _unchanged(case: Case, outputs: Outputs) -> Judgement:
    """That an input changed is found out beside the kernel, and is a failed call."""
    return Judgement(status="pass")


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
        _in_manners(cases.wide, "together"),
        _judge_both(_turned),
        related=_turned,
        formula="q(a), q(b), then both are read",
    ),
    check(
        51,
        "The input holds the same bits after the call.",
        _in_manners(_TEMPTING, "watched"),
        _unchanged,
        may_refuse=True,
        formula="bits of x, before and after",
    ),
    check(
        52,
        "Bytes are right where the input is a transposed view or has gaps.",
        _in_manners(_anywhere, "transposed", "spaced"),
        needs="any_layout",
        may_refuse=True,
        formula="q(a), a with other strides",
    ),
    check(
        53,
        "Bytes do not depend on a call before, of more rows or columns.",
        _in_manners(_shrinking, "together"),
        _judge_both(_smaller),
        related=_smaller,
        may_refuse=True,
        formula="q(a), q(b), b with fewer rows or columns",
    ),
)
