"""Checks of `grouped_matmul`: values."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, failed, infinite_signs, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import integers, one_expert_sizes
from moe_ref.conformance.suite._grouped_cases import (
    EXPERTS,
    ROWS,
    based,
    belongs,
    edges,
    grouped_case,
    many,
    other_magnitudes,
    poisoned_expert,
    poisoned_tail,
    skewed,
    tiny,
    truth_of,
    where_row,
)

_FORMULA = "y[r] = x[r] @ w[e(r)], r < sum(group_sizes); |y - oracle| <= bound"


def judge_rows(case: Case, outputs: Outputs) -> Judgement:
    """The rows that belong to a group, against the oracle."""
    return judge_signed(outputs["y"], truth_of(case), where=where_row(case), rows=belongs(case))


def judge_signed(actual: np.ndarray, truth: oracle.Value, **options: Any) -> Judgement:
    """Within the bound, and an Inf that is asked for has its sign."""
    return all_of(within(actual, truth, **options), infinite_signs(actual, truth, **options))


def judge_form(case: Case, outputs: Outputs) -> Judgement:
    """The result has a row for each row of x, and its dtype."""
    y, x, w = outputs["y"], case.arrays["x"], case.arrays["w"]
    dtype = case.dtype if case.numerics is None else case.numerics.output
    if (y.shape, y.dtype.name) == ((len(x), w.shape[2]), dtype):
        return Judgement(status="pass")
    found = f"{y.dtype.name}{list(y.shape)}"
    return failed(f"result is {found}, expected {dtype}[{len(x)}, {w.shape[2]}]")


def _judge_exact(case: Case, outputs: Outputs) -> Judgement:
    rows, y = belongs(case), outputs["y"]
    expected = truth_of(case).value[rows].astype(y.dtype)
    return equal(y[rows], expected, where=where_row(case))


def judge_zero_tail(case: Case, outputs: Outputs) -> Judgement:
    """Rows that belong to no group are exactly zero."""
    y = outputs["y"]
    expected = np.where(belongs(case)[:, None], y, np.zeros_like(y))
    return equal(y, expected, where=where_row(case))


def judge_twice(case: Case, outputs: Outputs) -> Judgement:
    """Two calls give the same bits."""
    rows = belongs(case)
    return equal(outputs["again.y"][rows], outputs["y"][rows], where=where_row(case))


def _hot(rng, dtype, budget) -> Iterator[Case]:
    for hot in (0, 3, 6):
        sizes = one_expert_sizes(experts=EXPERTS, rows=ROWS, hot=hot)
        yield based(rng, f"all rows to expert {hot} of {EXPERTS}", dtype, sizes)


def _empty(rng, dtype, budget) -> Iterator[Case]:
    some = ((0, 19, 0, 0, 27, 19, 0), (32, 0, 16, 0, 16, 0, 1), (0, 0, 0, 64, 0, 0, 1))
    even = (9,) * EXPERTS, (1,) * EXPERTS  # and a tail
    for sizes in (*some, (19, 0, 27, 0, 19, 0, 0), *even):
        yield based(rng, f"sizes {list(sizes)}", dtype, sizes)


def _nothing(rng, dtype, budget) -> Iterator[Case]:
    yield grouped_case(rng, "no rows", dtype, [0, 0, 0])
    yield grouped_case(rng, "one expert, no rows", dtype, [0])


def _many(rng, dtype, budget) -> Iterator[Case]:
    yield from many(rng, dtype, budget)
    yield grouped_case(rng, "one expert", dtype, [37], k=16, n=16)


def _poisoned_row(rng, dtype, budget) -> Iterator[Case]:
    for poison, row in ((np.nan, 0), (np.inf, 9), (np.nan, ROWS - 1), (-np.inf, 30)):
        case = based(rng, f"{poison} in row {row}", dtype)
        case.arrays["x"][row, 2] = poison
        yield case


def _far_from_one(rng, dtype, budget) -> Iterator[Case]:
    for case in itertools.islice(other_magnitudes(rng, dtype, budget), 4):  # those of x and of w
        del case.arrays["cotangent"]
        yield case


def _small(rng, dtype, budget) -> Iterator[Case]:
    yield based(rng, "x of size 1e-5", dtype, scale=1e-5)


def _small_rows(rng, dtype, budget) -> Iterator[Case]:
    case = based(rng, "every third row of x 2^-17 times as large", dtype)
    case.arrays["x"][::3] *= np.asarray(2.0**-17, case.arrays["x"].dtype)
    yield case


def _whole_numbers(rng, dtype, budget) -> Iterator[Case]:
    yield grouped_case(rng, "integers", dtype, [9, 0, 20, 4, 31], k=16, n=16, draw=integers)


def _long(rng, dtype, budget) -> Iterator[Case]:
    yield grouped_case(rng, "70001 rows", dtype, [40001, 29999, 1], k=4, n=4)


def _check(number: int, statement: str, cases, judge=judge_rows, **options: Any) -> Check:
    fields: dict[str, Any] = {"kind": "rounding", "formula": _FORMULA} | options
    return Check(
        id=f"GRP-{number:02d}",
        op="grouped_matmul",
        statement=statement,
        cases=cases,
        judge=judge,
        **fields,
    )


CHECKS = (
    _check(
        1,
        "The result has one row for each row of x, one column for each of w, and x's dtype or the "
        "one declared for it.",
        skewed,
        judge_form,
        kind="exact",
        formula="y: [rows, n], dtype of x",
    ),
    _check(2, "Every row is multiplied with the weight of its own expert (Zipf sizes).", skewed),
    _check(3, "One expert may own all rows.", _hot),
    _check(4, "Empty groups, first, last or between, shift nothing.", _empty),
    _check(5, "No rows give no rows.", _nothing, may_refuse=True),
    _check(6, "Sizes around tile edges are right, for rows, k and n.", edges, may_refuse=True),
    _check(7, "One expert and 600 experts are right.", _many),
    _check(
        8, "What rows past the last group hold (NaN, Inf, 1e30) reaches no group.", poisoned_tail
    ),
    _check(
        9,
        "Rows past the last group are zero.",
        poisoned_tail,
        judge_zero_tail,
        kind="exact",
        formula="y[r] = 0, r >= sum(group_sizes)",
        needs="zero_tail",
    ),
    _check(10, "A NaN or Inf in one row reaches that row only.", _poisoned_row),
    _check(
        11, "A NaN or Inf in one expert's weight reaches that expert's rows only.", poisoned_expert
    ),
    _check(12, "Small inputs keep their relative accuracy.", _small),
    _check(
        13,
        "Small integers are multiplied exactly.",
        _whole_numbers,
        _judge_exact,
        kind="exact",
        formula="y = x @ w, no rounding occurs",
    ),
    _check(
        15,
        "Two runs on the same input give the same bits.",
        skewed,
        judge_twice,
        kind="exact",
        related=lambda case: {"again": case},
        needs="deterministic",
        formula="y = y'",
    ),
    _check(27, "A batch of 1, 3 or 5 rows is right.", tiny),
    _check(28, "Row numbers beyond 2^15 and 2^16 do not overflow.", _long),
    _check(30, "Small rows keep their relative accuracy beside large ones.", _small_rows),
    _check(73, "Numbers far from 1 are neither clipped nor taken for 0.", _far_from_one),
)
