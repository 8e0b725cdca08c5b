"""Checks of `grouped_matmul_mx`: values."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance._judge import within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance._statistics import misrounded
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import _grouped_mx_cases as cases
from moe_ref.conformance.suite._grouped_cases import belongs, where_row
from moe_ref.conformance.suite._grouped_mx_cases import Draw, said, truth_of, values_of
from moe_ref.conformance.suite._grouped_values import judge_form, judge_twice, judge_zero_tail

OP = "grouped_matmul_mx"
NARROW = ("bfloat16", "float16")
_FORMULA = "y[r] = Q_k(x[r]) @ Q_k(w[e(r)]), r < sum(group_sizes); |y - oracle| <= bound of the sum"


def judge_rows(case: Case, outputs: Outputs) -> Judgement:
    """The rows that belong to a group, against the oracle."""
    truth = truth_of(case)
    return within(outputs["y"], truth, where=where_row(case), rows=belongs(case) & said(truth))


def _judge_rounding(case: Case, outputs: Outputs) -> Judgement:
    y, rows = outputs["y"], belongs(case)
    if y.dtype.name not in NARROW:
        return Judgement(status="skipped", detail=f"{y.dtype.name} results are not narrow")
    return misrounded(y[rows], truth_of(case)[rows], y.dtype)


def known_dtypes(draw: Draw) -> Draw:
    """Inputs for the dtypes that MX blocks are written from; none for float64."""

    def drawn(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        if dtype != "float64":
            yield from draw(rng, dtype, budget)

    return drawn


def _check(
    number: int,
    statement: str,
    draw: Draw,
    judge: Callable[[Case, Outputs], Judgement] = judge_rows,
    **options: Any,
) -> Check:
    fields: dict[str, Any] = {"kind": "rounding", "formula": _FORMULA} | options
    return Check(
        id=f"MXG-{number:02d}",
        op=OP,
        statement=statement,
        cases=known_dtypes(values_of(draw)),
        judge=judge,
        **fields,
    )


_steps_of_w = functools.partial(cases.steps_of_w, axis=0)
_tiny_x = functools.partial(cases.tiny_operand, name="x")
_tiny_w = functools.partial(cases.tiny_operand, name="w")
_poisoned_row = functools.partial(cases.poisoned_row, name="x")

CHECKS = (
    _check(
        1,
        "The result has one row for each row of x, one column for each of w, and x's dtype or the "
        "one declared for it.",
        cases.plain,
        judge_form,
        kind="exact",
        formula="y: [rows, n], dtype of x",
    ),
    _check(2, "Normal operands are quantised and multiplied by group.", cases.plain),
    _check(
        3,
        "Each block of 32 along k has its own scale, whatever the sizes of rows, blocks and "
        "experts, and of numbers inside a block.",
        cases.wide,
    ),
    _check(4, "The scales of x follow the declared rule.", cases.steps_along),
    _check(5, "The scales of w follow the declared rule, along k.", _steps_of_w),
    _check(6, "One expert may own all rows, or most, or an end, none.", cases.few_groups),
    _check(
        7,
        "A last block of fewer than 32 values along k is as if zeros followed.",
        cases.ragged,
        may_refuse=True,
    ),
    _check(8, "Blocks of zeros, of either sign, are zeros.", cases.zero_blocks),
    _check(9, "Blocks of x whose scale is byte 0, 2^-127, keep their values.", _tiny_x),
    _check(10, "Blocks of w whose scale is byte 0, 2^-127, keep their values.", _tiny_w),
    _check(11, "Matrices and sums of more than one tile are right.", cases.large),
    _check(12, "300 experts are right.", cases.many_experts),
    _check(13, "A batch of one row is right.", cases.one_row),
    _check(14, "No rows give no rows.", cases.no_rows, may_refuse=True),
    _check(
        15,
        "What rows past the last group hold (NaN, Inf, 1e30) reaches no group.",
        cases.poisoned_tail,
    ),
    _check(
        16,
        "Rows past the last group are zero.",
        cases.poisoned_tail,
        judge_zero_tail,
        kind="exact",
        formula="y[r] = 0, r >= sum(group_sizes)",
        needs="zero_tail",
    ),
    _check(
        17,
        "A NaN or Inf in one row shows there, as the declared policy says, and in no other.",
        _poisoned_row,
    ),
    _check(
        18,
        "A NaN or Inf in one expert's weight shows in that expert's rows, as the declared policy "
        "says, and in no others.",
        cases.poisoned_expert,
    ),
    _check(
        19,
        "Two runs on the same input give the same bits.",
        cases.wide,
        judge_twice,
        kind="exact",
        related=lambda case: {"again": case},
        needs="deterministic",
        formula="y = y'",
    ),
    _check(
        20,
        "No more narrow results miss the nearest number than the sum's rounding explains.",
        cases.plain,
        _judge_rounding,
        kind="statistics",
        formula="number of results other than RN(value)",
    ),
)
