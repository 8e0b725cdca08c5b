"""Checks of `plan` with a capacity."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._plan_cases import (
    EXPERTS,
    ROUTINGS,
    TOKENS,
    K,
    large_case,
    order,
    plan_case,
    routed,
)
from moe_ref.conformance.suite._plan_gradients import judge_nothing, judge_weights, judge_x
from moe_ref.conformance.suite._plan_judge import judge_groups, judge_sizes, judge_y


def _limited(case: Case, capacity: int) -> Case:
    return case.replace(capacity=np.asarray(capacity, np.int32))


def _judge_both(case: Case, outputs: Outputs) -> Judgement:
    return all_of(judge_groups(case, outputs), judge_y(case, outputs))


def _judge_gradients(case: Case, outputs: Outputs) -> Judgement:
    return all_of(judge_x(case, outputs), judge_weights(case, outputs))


def full(rng, dtype, budget):
    """More slots than room; in every slot position some are dropped."""
    for label, options in ROUTINGS.items():
        ids = routed(rng, **options)
        yield _limited(plan_case(rng, f"{label}, capacity 5", dtype, ids), 5)
    yield _limited(large_case(rng, dtype, once=True), 5)


def _poisoned(rng, dtype, budget):
    """Dropped slots with NaN weights."""
    for case in full(rng, dtype, budget):
        case.arrays["weights"][~order(case).kept] = np.nan
        yield case


def _extremes(rng, dtype, budget):
    for label, capacity in (
        ("no room at all", 0),
        ("room for one", 1),
        ("as much room as tokens", TOKENS),
        ("more room than slots", TOKENS * K + 3),
    ):
        yield _limited(plan_case(rng, label, dtype, routed(rng)), capacity)
    ids = np.full((TOKENS, 1), EXPERTS - 1)
    yield _limited(plan_case(rng, "all to the last expert, capacity 5", dtype, ids), 5)


def _with_cotangent(rng, dtype, budget):
    for poison in (np.nan, 3.0):
        ids = routed(rng, skew=1.2, empty=0.1)
        label = f"capacity 5, weights of {poison} in dropped slots"
        case = _limited(plan_case(rng, label, dtype, ids, cotangent=True), 5)
        case.arrays["weights"][~order(case).kept] = poison
        yield case
    case = _limited(large_case(rng, dtype, cotangent=True, once=True), 5)
    case.arrays["weights"][~order(case).kept] = np.nan
    yield case


def _later(case: Case) -> dict[str, Case]:
    """Other experts for the second half of the tokens."""
    experts = case.arrays["experts"].copy()
    half = len(experts) // 2
    experts[half:] = experts[half:][::-1]
    experts[half:][-5:] = 0
    return {"later": case.replace(experts=experts)}


def _judge_later(case: Case, outputs: Outputs) -> Judgement:
    """Whether earlier tokens are served, not the bits of what they get."""
    half = len(case.arrays["x"]) // 2
    served, other = ((outputs[n][:half] != 0).any(axis=1) for n in ("y", "later.y"))
    return equal(other, served, where=lambda place: f"token {place[0]} is served")


def _single(rng, dtype, budget):
    ids = routed(rng, k=1, skew=1.5)
    yield _limited(plan_case(rng, "one slot, capacity 5", dtype, ids), 5)


def _check(number: int, statement: str, cases, judge, formula: str, **more: Any) -> Check:
    fields: dict[str, Any] = {"kind": "exact"} | more
    return Check(
        id=f"PLN-{number:02d}",
        op="plan",
        statement=statement,
        formula=formula,
        cases=cases,
        judge=judge,
        needs="capacity",
        **fields,
    )


_KEPT = "kept(t,j) = #{earlier (t',j') of e[t,j], token-major} < C"
_Y = "y[t] = sum over kept j of w[t,j] scale[e] x[t]"
CHECKS = (
    _check(
        41,
        "No expert has more rows than its capacity, and none fewer than it could.",
        full,
        judge_sizes,
        "group_sizes[e] = min(#{(t,j): e[t,j] = e}, C)",
    ),
    _check(
        42,
        "The first slots of each expert, token after token, are the ones that survive.",
        full,
        judge_groups,
        _KEPT,
    ),
    _check(43, "A dropped slot contributes exactly nothing.", full, judge_y, _Y, kind="rounding"),
    _check(
        44,
        "The weight of a dropped slot, NaN, reaches nothing.",
        _poisoned,
        judge_y,
        _Y,
        kind="rounding",
    ),
    _check(
        45,
        "Capacity 0 drops everything; room for all, or for more, drops nothing.",
        _extremes,
        _judge_both,
        _KEPT,
        kind="rounding",
    ),
    _check(
        46,
        "Later tokens never push out an earlier one.",
        _single,
        _judge_later,
        "kept(t) depends on tokens up to t",
        kind="metamorphic",
        related=_later,
    ),
    _check(
        47,
        "The weight of a dropped slot has gradient 0.",
        _with_cotangent,
        judge_nothing,
        "dw[t,j] = 0 where dropped",
        kind="gradient",
        method="vjp",
        wants=("grad.weights",),
    ),
    _check(
        48,
        "A dropped slot passes no gradient to x.",
        _with_cotangent,
        _judge_gradients,
        "dx[t] = sum over kept j of w[t,j] scale[e] dy[t]",
        kind="gradient",
        method="vjp",
        wants=("grad.x", "grad.weights"),
    ),
)
