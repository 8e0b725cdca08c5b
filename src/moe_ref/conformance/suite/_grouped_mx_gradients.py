"""Checks of `grouped_matmul_mx`: gradients, with random cotangents."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance._statistics import misrounded
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import _grouped_mx_cases as cases
from moe_ref.conformance.suite._grouped_cases import belongs, where_row, where_weight
from moe_ref.conformance.suite._grouped_gradients import (
    judge_dtypes,
    judge_empty,
    judge_twice,
    judge_zero_tail,
)
from moe_ref.conformance.suite._grouped_mx_cases import Draw, gradients_of, said
from moe_ref.conformance.suite._grouped_mx_values import NARROW, OP, known_dtypes

_Judge = Callable[[Case, Outputs], Judgement]


def judge_dx(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of the rows that belong to a group, against the oracle."""
    truth = gradients_of(case).x
    rows = belongs(case) & said(truth)
    return within(outputs["grad.x"], truth, where=where_row(case), rows=rows)


def judge_dw(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of w, against the oracle."""
    truth = gradients_of(case).w
    return within(outputs["grad.w"], truth, where=where_weight, rows=said(truth))


def _judge_rounding(case: Case, outputs: Outputs, *, name: str) -> Judgement:
    found = outputs[f"grad.{name}"]
    if found.dtype.name not in NARROW:
        return Judgement(status="skipped", detail=f"{found.dtype.name} results are not narrow")
    used = belongs(case) if name == "x" else case.arrays["group_sizes"] > 0
    return misrounded(found[used], getattr(gradients_of(case), name)[used], found.dtype)


def _empty(rng, dtype, budget) -> Iterator[Case]:
    for sizes in ((61, 0, 32, 0, 0, 39, 0), (0,) * cases.EXPERTS):
        tail = cases.ROWS - sum(sizes)
        case = cases.operands(rng, f"sizes {list(sizes)}", dtype, sizes, tail=tail)
        yield case
        case.arrays["w"][case.arrays["group_sizes"] == 0] = np.nan
        yield Case(label=f"{case.label}, NaN in idle experts", arrays=case.arrays)


def _together(*draws: Draw) -> Draw:
    return lambda *given: itertools.chain.from_iterable(draw(*given) for draw in draws)


_tiny = {n: functools.partial(cases.tiny_operand, name=n) for n in ("x", "w", "cotangent")}
_poisoned = {n: functools.partial(cases.poisoned_row, name=n) for n in ("x", "cotangent")}
_steps_of_w = functools.partial(cases.steps_of_w, axis=1)

_DX = "dx[r] = Q_n(dy[r]) @ Q_n(w[e(r)])^T"
_DW = "dw[e] = Q_t(x_e)^T @ Q_t(dy_e), or what `mx.wgrad` declares"
_DW_EMPTY = "dw[e] = 0 where group_sizes[e] = 0"
_DX_TAIL = "dx[r] = 0, r >= sum(group_sizes)"
_WANTED = {_DX: "grad.x", _DX_TAIL: "grad.x", _DW: "grad.w", _DW_EMPTY: "grad.w"}


def _check(
    number: int, statement: str, draw: Draw, judge: _Judge, formula: str, **options: Any
) -> Check:
    wants = (_WANTED[formula],) if formula in _WANTED else ()
    fields: dict[str, Any] = {"kind": "gradient", "wants": wants} | options
    return Check(
        id=f"MXG-{number:02d}",
        op=OP,
        statement=statement,
        formula=formula,
        method="vjp",
        cases=known_dtypes(draw),
        judge=judge,
        **fields,
    )


def _both(number: int, statement: str, draw: Draw, **options: Any) -> tuple[Check, Check]:
    """The same inputs for the gradient of x and for that of w."""
    return (
        _check(number, statement.format("x"), draw, judge_dx, _DX, **options),
        _check(number + 1, statement.format("w"), draw, judge_dw, _DW, **options),
    )


CHECKS = (
    *_both(31, "The gradient of {} is right for normal operands.", cases.plain),
    *_both(
        33,
        "The gradient of {} has operands that are quantised along its own sum, whatever the sizes "
        "of rows, columns, blocks and groups.",
        cases.wide,
    ),
    *_both(
        35,
        "The gradient of {} is right where one expert owns all rows, and where most, the first or "
        "the last own none.",
        cases.few_groups,
    ),
    *_both(
        37,
        "The gradient of {} is right where blocks do not divide k and n.",
        cases.ragged,
        may_refuse=True,
    ),
    *_both(39, "The gradient of {} is right for blocks of zeros.", cases.zero_blocks),
    *_both(
        41,
        "The gradient of {} is right for matrices and sums of more than one tile.",
        cases.large,
    ),
    *_both(43, "The gradient of {} is right for 300 experts.", cases.many_experts),
    *_both(
        45,
        "What rows past the last group hold, in x or in the cotangent, reaches no gradient of {}.",
        cases.poisoned_tail,
    ),
    *_both(
        47,
        "A NaN or Inf in one row's cotangent shows in the gradient of {} of that row or expert, as "
        "the declared policy says, and nowhere else.",
        _poisoned["cotangent"],
    ),
    *_both(
        49,
        "A NaN or Inf in one expert's weight shows in the gradient of {} where the declared policy "
        "says, and in that of no other expert.",
        cases.poisoned_expert,
    ),
    _check(
        51,
        "A NaN or Inf in one row shows in the gradient of its expert's weight, as the declared "
        "policy says, and in that of no other.",
        _poisoned["x"],
        judge_dw,
        _DW,
    ),
    _check(
        85,
        "A NaN or Inf in one row of x reaches no gradient of x.",
        _poisoned["x"],
        judge_dx,
        _DX,
    ),
    _check(
        52,
        "The scales of the cotangent and of w, along n, follow the declared rule.",
        _together(cases.steps_along, _steps_of_w),
        judge_dx,
        _DX,
    ),
    _check(
        53,
        "The scales of x and of the cotangent, along a group's rows, follow the declared rule.",
        cases.steps_of_groups,
        judge_dw,
        _DW,
    ),
    _check(
        54,
        "Blocks of the cotangent or of w whose scale is byte 0 keep their values in dx.",
        _together(_tiny["cotangent"], _tiny["w"]),
        judge_dx,
        _DX,
    ),
    _check(
        55,
        "Blocks of x or of the cotangent whose scale is byte 0 keep their values in dw.",
        _together(_tiny["x"], _tiny["cotangent"]),
        judge_dw,
        _DW,
    ),
    _check(
        56,
        "The weight gradient of an empty group is exactly zero, even where its weight is NaN.",
        _empty,
        judge_empty,
        _DW_EMPTY,
    ),
    _check(
        57,
        "The gradient of rows past the last group is zero.",
        cases.poisoned_tail,
        judge_zero_tail,
        _DX_TAIL,
        needs="zero_tail",
    ),
    _check(
        58,
        "Two runs on the same input give the same bits of every gradient.",
        cases.wide,
        judge_twice,
        "dx = dx', dw = dw'",
        related=lambda case: {"again": case},
        needs="deterministic",
    ),
    _check(
        59,
        "A gradient has the dtype of its input, or the one declared for it.",
        cases.plain,
        judge_dtypes,
        "dx: dtype of x; dw: dtype of w",
    ),
    *(
        _check(
            number,
            f"No more narrow gradients of {name} miss the nearest number than the sum's rounding "
            "explains.",
            cases.plain,
            functools.partial(_judge_rounding, name=name),
            "number of results other than RN(value)",
            kind="statistics",
            wants=(f"grad.{name}",),
        )
        for number, name in ((60, "x"), (61, "w"))
    ),
)
