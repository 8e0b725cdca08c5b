"""Checks of `grouped_matmul`: values."""

from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import integers, normal, one_expert_sizes, zipf_sizes

_FORMULA = "y[r] = x[r] @ w[e(r)], r < sum(group_sizes); |y - oracle| <= bound"


def grouped_case(rng, label, dtype, sizes, *, k=64, n=48, tail=0, scale=1.0, draw=normal) -> Case:
    """Random operands for the given group sizes, with `tail` rows that belong to no group."""
    sizes = np.asarray(sizes, np.int32) if np.asarray(sizes).dtype == int else np.asarray(sizes)
    rows = int(sizes.astype(np.int64).sum()) + tail
    if draw is normal:
        x = normal(rng, (rows, k), dtype, scale)
        w = normal(rng, (len(sizes), k, n), dtype, k**-0.5)
    else:
        x, w = draw(rng, (rows, k), dtype), draw(rng, (len(sizes), k, n), dtype)
    return Case(label=label, arrays={"x": x, "w": w, "group_sizes": sizes})


def belongs(case: Case) -> np.ndarray:
    """Which rows belong to a group."""
    total = int(case.arrays["group_sizes"].astype(np.int64).sum())
    return np.arange(len(case.arrays["x"])) < total


def where_row(case: Case):
    """Name an element of the result by row, expert and column."""
    ends = np.cumsum(case.arrays["group_sizes"].astype(np.int64))

    def name(place: tuple[int, ...]) -> str:
        expert = int(np.searchsorted(ends, place[0], side="right"))
        owner = f"expert {expert}" if expert < len(ends) else "the tail"
        return f"row {place[0]} of {owner}, column {place[1]}"

    return name


def judge_rows(case: Case, outputs: Outputs) -> Judgement:
    """The rows that belong to a group, against the oracle."""
    arrays = case.arrays
    truth = oracle.grouped_matmul(
        arrays["x"], arrays["w"], arrays["group_sizes"], numerics=case.numerics
    )
    rows = belongs(case)
    return within(outputs["y"], truth, where=where_row(case), rows=rows)


def _judge_form(case: Case, outputs: Outputs) -> Judgement:
    y, x, w = outputs["y"], case.arrays["x"], case.arrays["w"]
    wanted = ((x.shape[0], w.shape[2]), x.dtype)
    if (y.shape, y.dtype) == wanted:
        return Judgement(status="pass")
    detail = f"result is {y.dtype.name}{list(y.shape)}, expected {wanted[1].name}{list(wanted[0])}"
    return Judgement(status="fail", detail=detail)


def _judge_exact(case: Case, outputs: Outputs) -> Judgement:
    arrays = case.arrays
    truth = oracle.grouped_matmul(arrays["x"], arrays["w"], arrays["group_sizes"])
    rows = belongs(case)
    expected = truth.value[rows].astype(outputs["y"].dtype)
    return equal(outputs["y"][rows], expected, where=where_row(case))


def _judge_zero_tail(case: Case, outputs: Outputs) -> Judgement:
    y = outputs["y"]
    expected = np.where(belongs(case)[:, None], y, np.zeros_like(y))
    return equal(y, expected, where=where_row(case))


def _judge_twice(case: Case, outputs: Outputs) -> Judgement:
    rows = belongs(case)
    return equal(outputs["again.y"][rows], outputs["y"][rows], where=where_row(case))


def _skewed(rng, dtype, budget):
    for experts, rows in ((8, 200), (5, 64)) + (((64, 1024),) if budget == "thorough" else ()):
        yield grouped_case(
            rng, f"Zipf over {experts} experts", dtype, zipf_sizes(rng, experts=experts, rows=rows)
        )

    large = zipf_sizes(rng, experts=12, rows=700)
    yield grouped_case(rng, "Zipf over 12 experts, 700 rows", dtype, large, k=136, n=152)


def _hot(rng, dtype, budget):
    for hot in (0, 3, 6):
        sizes = one_expert_sizes(experts=7, rows=65, hot=hot)
        yield grouped_case(rng, f"all rows to expert {hot} of 7", dtype, sizes)


def _empty(rng, dtype, budget):
    for sizes in ([0, 9, 0, 0, 17, 5, 0], [8, 0, 8, 0], [0, 16, 0, 0], [0, 0, 0, 16]):
        yield grouped_case(rng, f"sizes {sizes}", dtype, sizes)


def _nothing(rng, dtype, budget):
    yield grouped_case(rng, "no rows", dtype, [0, 0, 0])
    yield grouped_case(rng, "one expert, no rows", dtype, [0])


def _edges(rng, dtype, budget):
    smoke = budget == "smoke"
    for m in (1, 31, 33, 64, 129) if smoke else (1, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129):
        yield grouped_case(rng, f"{m} rows before 7", dtype, [m, 7], k=32, n=16)
    for edge in (1, 33, 127) if smoke else (1, 3, 31, 33, 65, 127, 129):
        yield grouped_case(
            rng, f"k={edge}, n={130 - edge}", dtype, [5, 0, 11], k=edge, n=130 - edge
        )


def _many(rng, dtype, budget):
    sizes = rng.integers(0, 3, 300)
    yield grouped_case(rng, "300 experts", dtype, sizes, k=16, n=16)
    yield grouped_case(rng, "one expert", dtype, [37], k=16, n=16)


def _poisoned_tail(rng, dtype, budget):
    for poison in (np.nan, np.inf, 1e30):
        for sizes in ([3, 0, 2, 0], [5], [0, 0], [40, 25]):
            case = grouped_case(rng, f"{poison} in the tail, sizes {sizes}", dtype, sizes, tail=11)
            case.arrays["x"][~belongs(case)] = poison
            yield case


def _poisoned_row(rng, dtype, budget):
    for poison in (np.nan, np.inf):
        for row in (0, 9, 29):
            case = grouped_case(rng, f"{poison} in row {row}", dtype, [9, 0, 20, 1])
            case.arrays["x"][row, 2] = poison
            yield case


def _poisoned_expert(rng, dtype, budget):
    for poison in (np.nan, np.inf):
        for expert in range(4):
            case = grouped_case(rng, f"{poison} in expert {expert}", dtype, [9, 0, 20, 4])
            case.arrays["w"][expert, 1, :] = poison
            yield case


def _small(rng, dtype, budget):
    yield grouped_case(rng, "x of size 1e-5", dtype, [9, 20, 4], scale=1e-5)


def _whole_numbers(rng, dtype, budget):
    yield grouped_case(rng, "integers", dtype, [9, 0, 20, 4, 31], k=16, n=16, draw=integers)


def _integer_types(rng, dtype, budget):
    if dtype != "float32":
        return
    for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32):
        sizes = np.array([200, 100] if kind != np.int8 else [100, 90], kind)
        yield grouped_case(rng, f"{np.dtype(kind).name} sizes", dtype, sizes, k=8, n=8)


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
        "The result has x's dtype, one row for each row of x and one column for each of w.",
        _skewed,
        _judge_form,
        kind="exact",
        formula="y: [rows, n], dtype of x",
    ),
    _check(2, "Every row is multiplied with the weight of its own expert (Zipf sizes).", _skewed),
    _check(3, "One expert may own all rows.", _hot),
    _check(4, "Empty groups, first, last or between, shift nothing.", _empty),
    _check(5, "No rows give no rows.", _nothing, may_refuse=True),
    _check(6, "Sizes around tile edges are right, for rows, k and n.", _edges, may_refuse=True),
    _check(7, "One expert and 300 experts are right.", _many),
    _check(
        8, "What rows past the last group hold (NaN, Inf, 1e30) reaches no group.", _poisoned_tail
    ),
    _check(
        9,
        "Rows past the last group are zero.",
        _poisoned_tail,
        _judge_zero_tail,
        kind="exact",
        formula="y[r] = 0, r >= sum(group_sizes)",
        needs="zero_tail",
    ),
    _check(10, "A NaN or Inf in one row reaches that row only.", _poisoned_row),
    _check(
        11, "A NaN or Inf in one expert's weight reaches that expert's rows only.", _poisoned_expert
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
        14,
        "Group sizes of a narrow integer type do not overflow.",
        _integer_types,
        may_refuse=True,
    ),
    _check(
        15,
        "Two runs on the same input give the same bits.",
        _skewed,
        _judge_twice,
        kind="exact",
        related=lambda case: {"again": case},
        needs="deterministic",
        formula="y = y'",
    ),
)
