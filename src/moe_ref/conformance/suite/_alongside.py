"""Checks of every operation: the value that comes along with a gradient.

A kernel that is differentiated may compute its value another way then, and keep what the way back
needs. A kernel's own `vjp` returns gradients alone, so there is nothing to check.
"""

from typing import Any

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import _dispatch_combine_cases as exchanges
from moe_ref.conformance.suite import _grouped_mx_cases as mx
from moe_ref.conformance.suite import _plan_cases as plans
from moe_ref.conformance.suite._data_layer import drawn
from moe_ref.conformance.suite._dispatch_combine_values import judge_y as judge_exchange
from moe_ref.conformance.suite._grouped_cases import based, with_cotangent
from moe_ref.conformance.suite._grouped_mx_values import judge_rows as judge_mx
from moe_ref.conformance.suite._grouped_values import judge_rows
from moe_ref.conformance.suite._layer_judge import judge_layer
from moe_ref.conformance.suite._losses_gradients import rules as loss_rules
from moe_ref.conformance.suite._losses_judge import judge_losses
from moe_ref.conformance.suite._plan_judge import judge_groups, judge_y
from moe_ref.conformance.suite._route_gradients import rules as route_rules
from moe_ref.conformance.suite._route_judge import judge_route


def _grouped(rng, dtype, budget):
    yield with_cotangent(rng, based(rng, "sizes of all kinds", dtype))


def _planned(rng, dtype, budget):
    for label, options in plans.ROUTINGS.items():
        yield plans.plan_case(rng, label, dtype, plans.routed(rng, **options), cotangent=True)


def _exchanged(rng, dtype, budget):
    for label, options in plans.ROUTINGS.items():
        ids = exchanges.spread(rng, **options)
        yield exchanges.exchange_case(rng, label, dtype, ids, cotangent=True)


def _layers(rng, dtype, budget):
    names = ["mixtral-8x7b", "deepseek-v3"]
    yield from drawn(rng, names, dtype, budget, once=names[1:], heard=True)


def _judge_plan(case: Case, outputs: Outputs) -> Judgement:
    return all_of(judge_groups(case, outputs), judge_y(case, outputs))


def _check(id: str, op: str, cases: Any, judge: Any, formula: str) -> Check:
    return Check(
        id=id,
        op=op,
        statement="The value that comes along with a gradient is right.",
        formula=formula,
        kind="rounding",
        method="vjp",
        cases=cases,
        judge=judge,
        needs="autodiff",
    )


CHECKS = (
    _check("GRP-65", "grouped_matmul", _grouped, judge_rows, "y[r] = x[r] @ w[e(r)]"),
    _check("MXG-76", "grouped_matmul_mx", mx.plain, judge_mx, "y[r] = Q_k(x[r]) @ Q_k(w[e(r)])"),
    _check("RTE-29", "route", route_rules, judge_route, "top_k(s + b); w of s[ids]"),
    _check("LOS-24", "losses", loss_rules, judge_losses, "both losses, from the call of their vjp"),
    _check("PLN-49", "plan", _planned, _judge_plan, "rows = x[t]; y[t] = sum_j w[t,j] rows"),
    _check("LAY-36", "layer", _layers, judge_layer, "y = sum_j w_j expert_j(x) + shared(x)"),
    _check(
        "EXC-62",
        "dispatch_combine",
        _exchanged,
        judge_exchange,
        "y = sum_j w_j scale[e_j] x",
    ),
)
