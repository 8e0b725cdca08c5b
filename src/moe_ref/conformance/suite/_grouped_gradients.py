"""Checks of `grouped_matmul`: gradients, with random cotangents."""

from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import normal, one_expert_sizes, zipf_sizes
from moe_ref.conformance.suite._grouped_values import belongs, grouped_case, where_row


def _truth(case: Case):
    arrays = case.arrays
    return oracle.grouped_matmul_vjp(
        arrays["x"],
        arrays["w"],
        arrays["group_sizes"],
        arrays["cotangent"],
        numerics=case.numerics,
    )


def _judge_dx(case: Case, outputs: Outputs) -> Judgement:
    truth = _truth(case)
    rows = belongs(case)
    return within(outputs["grad.x"], truth.x, where=where_row(case), rows=rows)


def _judge_dw(case: Case, outputs: Outputs) -> Judgement:
    truth = _truth(case)
    return within(outputs["grad.w"], truth.w, where=_where_weight)


def _judge_empty(case: Case, outputs: Outputs) -> Judgement:
    dw = outputs["grad.w"]
    empty = case.arrays["group_sizes"] == 0
    expected = np.where(empty[:, None, None], np.zeros_like(dw), dw)
    return equal(dw, expected, where=_where_weight)


def _judge_zero_tail(case: Case, outputs: Outputs) -> Judgement:
    dx = outputs["grad.x"]
    expected = np.where(belongs(case)[:, None], dx, np.zeros_like(dx))
    return equal(dx, expected, where=where_row(case))


def _where_weight(place: tuple[int, ...]) -> str:
    return f"dw of expert {place[0]}, element {place[1:]}"


def _with_cotangent(rng, case: Case) -> Case:
    shape = (len(case.arrays["x"]), case.arrays["w"].shape[2])
    return case.replace(cotangent=normal(rng, shape, case.dtype))


def _skewed(rng, dtype, budget):
    for sizes in (
        zipf_sizes(rng, experts=8, rows=200),
        one_expert_sizes(experts=5, rows=65, hot=2),
        np.array([0, 9, 0, 0, 17, 5, 0], np.int32),
    ):
        yield _with_cotangent(rng, grouped_case(rng, f"sizes {sizes.tolist()}", dtype, sizes))
    large = zipf_sizes(rng, experts=12, rows=700)
    label = "Zipf over 12 experts, 700 rows"
    yield _with_cotangent(rng, grouped_case(rng, label, dtype, large, k=136, n=152))


def _edges(rng, dtype, budget):
    for m in (1, 33, 129) if budget == "smoke" else (1, 31, 33, 63, 64, 65, 127, 129):
        yield _with_cotangent(rng, grouped_case(rng, f"{m} rows", dtype, [m, 7], k=33, n=31))


def _empty(rng, dtype, budget):
    for sizes in ([8, 0, 8, 0], [0, 16, 0, 0], [0, 0, 0, 16], [0, 0, 0, 0]):
        case = _with_cotangent(rng, grouped_case(rng, f"sizes {sizes}", dtype, sizes, tail=3))
        yield case
        weights = case.arrays["w"].copy()
        weights[np.asarray(sizes) == 0] = np.nan
        yield Case(label=f"sizes {sizes}, NaN in idle experts", arrays=case.arrays | {"w": weights})


def _poisoned_tail(rng, dtype, budget):
    for poison in (np.nan, np.inf, 1e30):
        for sizes in ([3, 0, 2, 0], [5], [40, 25]):
            label = f"{poison} in the tail of x and cotangent, sizes {sizes}"
            case = _with_cotangent(rng, grouped_case(rng, label, dtype, sizes, tail=11))
            case.arrays["x"][~belongs(case)] = poison
            case.arrays["cotangent"][~belongs(case)] = poison
            yield case


def _poisoned_expert(rng, dtype, budget):
    for poison in (np.nan, np.inf):
        for expert in (0, 1, 3):
            label = f"{poison} in expert {expert}"
            case = _with_cotangent(rng, grouped_case(rng, label, dtype, [9, 0, 20, 4]))
            case.arrays["w"][expert, 1, :] = poison
            yield case


def _poisoned_row(rng, dtype, budget):
    for name in ("x", "cotangent"):
        label = f"NaN in row 12 of {name}"
        case = _with_cotangent(rng, grouped_case(rng, label, dtype, [9, 0, 20, 4]))
        case.arrays[name][12] = np.nan
        yield case


_DX, _DW = "dx[r] = dy[r] @ w[e(r)]^T", "dw[e] = x_e^T @ dy_e"
_DW_EMPTY = "dw[e] = 0 where group_sizes[e] = 0"
_DX_TAIL = "dx[r] = 0, r >= sum(group_sizes)"
_WANTED = {_DX: "grad.x", _DX_TAIL: "grad.x", _DW: "grad.w", _DW_EMPTY: "grad.w"}


def _check(number: int, statement: str, cases, judge, formula: str, **fields: Any) -> Check:
    return Check(
        id=f"GRP-{number:02d}",
        op="grouped_matmul",
        statement=statement,
        formula=formula,
        kind="gradient",
        method="vjp",
        cases=cases,
        judge=judge,
        wants=(_WANTED[formula],),
        **fields,
    )


CHECKS = (
    _check(31, "The gradient of x is right under skew.", _skewed, _judge_dx, _DX),
    _check(32, "The gradient of w is right under skew.", _skewed, _judge_dw, _DW),
    _check(33, "The gradient of x is right around tile edges.", _edges, _judge_dx, _DX),
    _check(34, "The gradient of w is right around tile edges.", _edges, _judge_dw, _DW),
    _check(
        35,
        "The weight gradient of an empty group is exactly zero, even where its weight is NaN.",
        _empty,
        _judge_empty,
        _DW_EMPTY,
    ),
    _check(
        36,
        "What rows past the last group hold, in x or in the cotangent, reaches no gradient of x.",
        _poisoned_tail,
        _judge_dx,
        _DX,
    ),
    _check(
        37,
        "What rows past the last group hold, in x or in the cotangent, reaches no gradient of w.",
        _poisoned_tail,
        _judge_dw,
        _DW,
    ),
    _check(
        38,
        "The gradient of rows past the last group is zero.",
        _poisoned_tail,
        _judge_zero_tail,
        _DX_TAIL,
        needs="zero_tail",
    ),
    _check(
        39,
        "A NaN in one row, or in its cotangent, reaches the weight gradient of its expert only.",
        _poisoned_row,
        _judge_dw,
        _DW,
    ),
    _check(
        40,
        "A NaN in one row's cotangent reaches the gradient of that row only.",
        _poisoned_row,
        _judge_dx,
        _DX,
    ),
    _check(
        41,
        "A NaN or Inf in one expert's weight reaches the gradient of that expert's rows only.",
        _poisoned_expert,
        _judge_dx,
        _DX,
    ),
    _check(
        42,
        "A NaN or Inf in one expert's weight reaches no weight gradient.",
        _poisoned_expert,
        _judge_dw,
        _DW,
    ),
)
