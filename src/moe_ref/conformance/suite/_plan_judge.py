"""Judge group sizes, rows, and what a plan brings back."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._judge import all_of, equal, failed, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance._statistics import misrounded, rms, score
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._plan_cases import order, truth, where_token


def judge_sizes(case: Case, outputs: Outputs) -> Judgement:
    """Group sizes, exactly."""
    expected = order(case).group_sizes
    return equal(outputs["group_sizes"], expected, where=lambda place: f"expert {place[0]}")


def judge_groups(case: Case, outputs: Outputs, *, in_order: bool = False) -> Judgement:
    """Each group's rows: exact copies of its tokens, in any order or in token order."""
    sizes = judge_sizes(case, outputs)
    if sizes.status == "fail":
        return sizes
    rows, x, plan = outputs["rows"], case.arrays["x"], order(case)
    if rows.dtype != x.dtype:
        return failed(f"rows are {rows.dtype.name}, expected copies of x, {x.dtype.name}")
    experts = len(plan.group_sizes)
    first = np.cumsum(plan.group_sizes) - plan.group_sizes
    starts = first
    if case.has("capacity"):
        starts = np.arange(experts) * (len(rows) // experts)
    for expert in np.flatnonzero(plan.group_sizes):
        begin, size = int(starts[expert]), int(plan.group_sizes[expert])
        mine = plan.tokens[first[expert] : first[expert] + size]
        got, want = (a.astype(np.float64) for a in (rows[begin : begin + size], x[mine]))
        if not in_order:
            got, want = _sorted(got), _sorted(want)
        where = _where_row(int(expert), mine if in_order else None)
        signs = equal(*_signs(got, want), where=lambda place, of=where: f"sign, {of(place)}")
        judged = all_of(equal(got, want, where=where), signs)
        if judged.status == "fail":
            return judged
    return Judgement(status="pass")


def judge_y(case: Case, outputs: Outputs) -> Judgement:
    """What comes back, within the bound."""
    return within(outputs["y"], truth(case), where=where_token(case))


def judge_exact(case: Case, outputs: Outputs) -> Judgement:
    """What comes back, exactly: no rounding occurs."""
    y = outputs["y"]
    return equal(y, truth(case).value.astype(y.dtype), where=where_token(case))


def _signs(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signs, of zeros too, which equality does not tell apart; a NaN has none."""
    here, there = (np.where(np.isnan(rows), 0, np.copysign(1, rows)) for rows in (got, want))
    return here, there


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T[::-1])]


def _where_row(expert: int, tokens: np.ndarray | None):
    def name(place: tuple[int, ...]) -> str:
        if tokens is None:
            return f"rows of expert {expert}, sorted, element {place}"
        return f"row {place[0]} of expert {expert}, of token {tokens[place[0]]}, column {place[1]}"

    return name


def judge_order(case: Case, outputs: Outputs) -> Judgement:
    """Each group's rows in token order."""
    return judge_groups(case, outputs, in_order=True)


def judge_statistics(y: np.ndarray, value: Any, dtype: str) -> Judgement:
    """The errors of a combine on random data: size, direction, nearest of a narrow dtype."""
    size = rms(y, value)
    factor = score(y, value, value.value, "the value: a factor")
    sign = score(y, value, np.sign(value.value), "the sign: truncation")
    if y.dtype == dtype_of(dtype) and dtype in ("bfloat16", "float16"):
        return all_of(size, factor, sign, misrounded(y, value, y.dtype))
    return all_of(size, factor, sign)
