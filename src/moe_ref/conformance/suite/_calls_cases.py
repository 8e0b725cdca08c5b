"""What the checks of calls and memory know of each operation: inputs, judges, another input."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import _dispatch_combine_cases as exchanges
from moe_ref.conformance.suite import _dispatch_combine_gradients as exchange_gradients
from moe_ref.conformance.suite import _grouped_cases as grouped
from moe_ref.conformance.suite import _grouped_gradients as grouped_gradients
from moe_ref.conformance.suite import _grouped_mx_cases as mx
from moe_ref.conformance.suite import _grouped_mx_gradients as mx_gradients
from moe_ref.conformance.suite import _losses, _route
from moe_ref.conformance.suite import _plan_cases as plans
from moe_ref.conformance.suite import _plan_gradients as plan_gradients
from moe_ref.conformance.suite._data import dtype_of, normal, with_odd_values
from moe_ref.conformance.suite._data_layer import drawn, with_experts
from moe_ref.conformance.suite._data_route import (
    EVERY_RULE,
    LARGE_RULES,
    PLAIN,
    random_bias,
    route_case,
    tokens_of,
)
from moe_ref.conformance.suite._dispatch_combine_values import judge_y as judge_exchange
from moe_ref.conformance.suite._grouped_mx_values import judge_rows as judge_mx
from moe_ref.conformance.suite._grouped_values import judge_rows
from moe_ref.conformance.suite._layer import masked as masked_layers
from moe_ref.conformance.suite._layer_judge import judge_gradients, judge_output
from moe_ref.conformance.suite._losses_judge import judge_gradient as judge_losses_gradient
from moe_ref.conformance.suite._losses_judge import judge_load, judge_losses
from moe_ref.conformance.suite._plan_judge import judge_groups, judge_y
from moe_ref.conformance.suite._route_judge import judge_gradient as judge_route_gradient
from moe_ref.conformance.suite._route_judge import judge_route

_RULES = (
    "softmax, renormalised",
    "sigmoid, bias, top-2 of groups",
    "softmax over the chosen",
    PLAIN,
)
Cases = Callable[[np.random.Generator, str, Budget], Iterable[Case]]
Judge = Callable[[Case, Outputs], Judgement]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """An operation, as these checks see it.

    Attributes:
        op: the operation.
        prefix: of its checks' ids.
        first: number of the first of its six checks.
        cases: ordinary inputs, with cotangents.
        special: inputs a kernel may be tempted to write into: with a tail, padding, NaN.
        judge: of the value.
        judge_gradients: of what gradients there are.
        other: another input of the same shapes, whose results are others.
    """

    op: str
    prefix: str
    first: int
    cases: Cases
    special: Cases
    judge: Judge
    judge_gradients: Judge
    other: Callable[[Case], Case]


def _odd(rng: np.random.Generator, cases: Iterable[Case]) -> Iterator[Case]:
    """The same inputs with Inf, NaN, -0 and subnormal numbers here and there."""
    for case in cases:
        moving = {n: a for n, a in case.arrays.items() if a.dtype.kind not in "iub"}
        other = case.replace(**{n: with_odd_values(rng, a) for n, a in moving.items()})
        yield dataclasses.replace(other, label=f"{case.label}, odd values")


def _each_given(**judges: Judge) -> Judge:
    """Judge every gradient that was given, by the name of its input."""

    def judge(case: Case, outputs: Outputs) -> Judgement:
        found = [one(case, outputs) for n, one in judges.items() if f"grad.{n}" in outputs]
        return all_of(*found) if found else grouped_gradients.NO_GRADIENT

    return judge


def _backwards(case: Case, *names: str, axis: int = 0) -> dict[str, np.ndarray]:
    """Arrays in the opposite order along an axis, those of them that are there."""
    return {n: np.flip(case.arrays[n], axis).copy() for n in names if case.has(n)}


def _grouped(rng, dtype, budget) -> Iterator[Case]:
    yield grouped.with_cotangent(rng, grouped.based(rng, "sizes of all kinds", dtype))
    sizes = (9, 0, 20, 0, 11, 0, 5)
    yield grouped.with_cotangent(rng, grouped.based(rng, f"sizes {list(sizes)}", dtype, sizes))


def _grouped_special(rng, dtype, budget) -> Iterator[Case]:
    yield grouped.with_cotangent(rng, grouped.large_group(rng, dtype))
    yield from _odd(rng, [next(_grouped(rng, dtype, budget))])
    yield grouped.with_cotangent(rng, grouped.wide_sizes(rng, dtype))
    for case in grouped.poisoned_tail(rng, dtype, budget):
        yield grouped.with_cotangent(rng, case)


def _other_grouped(case: Case) -> Case:
    return case.replace(**_backwards(case, "x", "w", "group_sizes", "cotangent"))


def _mx_special(rng, dtype, budget) -> Iterator[Case]:
    yield next(mx.large(rng, dtype, budget))
    yield from _odd(rng, mx.plain(rng, dtype, budget))
    yield from mx.poisoned_tail(rng, dtype, budget)


def _routes(rng, dtype, budget) -> Iterator[Case]:
    for label in _RULES:
        router = EVERY_RULE[label]
        logits = normal(rng, (tokens_of(router), router.num_choices), dtype)
        more = random_bias(rng, router, dtype)
        more["cotangent"] = normal(rng, (len(logits), router.k), dtype)
        yield route_case(label, router, logits, once=label in LARGE_RULES, **more)


def _route_special(rng, dtype, budget) -> Iterator[Case]:
    for case in _route.masked(rng, dtype, budget):
        shape = (len(case.arrays["logits"]), case.spec.router.k)
        yield case.replace(cotangent=normal(rng, shape, dtype))
    yield from _odd(rng, _routes(rng, dtype, budget))


def _other_route(case: Case) -> Case:
    return case.replace(**_backwards(case, "logits", "cotangent"))


def _with_both(dtype: str, case: Case) -> Case:
    """A cotangent of both losses."""
    return case.replace(cotangent=np.array([1, -0.75]).astype(dtype_of(dtype)))


def _drawn_losses(rng, dtype, budget) -> Iterator[Case]:
    for label in ("softmax", "sigmoid"):
        yield _with_both(dtype, _losses.drawn(rng, label, dtype))


def _losses_special(rng, dtype, budget) -> Iterator[Case]:
    for case in _losses.masked(rng, dtype, budget):
        yield _with_both(dtype, case)
    yield from _odd(rng, _drawn_losses(rng, dtype, budget))


def _other_losses(case: Case) -> Case:
    number = case.spec.router.num_choices
    experts = (case.arrays["experts"] + 1) % number
    return case.replace(logits=-case.arrays["logits"], experts=experts)


def _judge_losses(case: Case, outputs: Outputs) -> Judgement:
    found = judge_losses(case, outputs)
    return all_of(found, judge_load(case, outputs)) if "load" in outputs else found


def _plans(rng, dtype, budget) -> Iterator[Case]:
    for label, options in plans.ROUTINGS.items():
        yield plans.plan_case(rng, label, dtype, plans.routed(rng, **options), cotangent=True)


def _plan_special(rng, dtype, budget) -> Iterator[Case]:
    for case in _plans(rng, dtype, budget):
        case.arrays["weights"][case.arrays["experts"] < 0] = np.nan
        yield case
    yield from _odd(rng, _plans(rng, dtype, budget))


def _judge_plan(case: Case, outputs: Outputs) -> Judgement:
    return all_of(judge_groups(case, outputs), judge_y(case, outputs))


def _relabelled(case: Case, axis: int) -> Case:
    """Tokens the other way round, and the last expert is the first, so that signs still fit."""
    rows = _backwards(case, "x", "experts", "weights", "cotangent", axis=axis)
    experts = np.where(rows["experts"] < 0, -1, len(case.arrays["scale"]) - 1 - rows["experts"])
    scale = case.arrays["scale"][::-1].copy()
    return case.replace(**rows | {"experts": experts.astype(np.int32), "scale": scale})


def _exchanges(rng, dtype, budget) -> Iterator[Case]:
    for label, options in plans.ROUTINGS.items():
        ids = exchanges.spread(rng, **options)
        yield exchanges.exchange_case(rng, label, dtype, ids, cotangent=True)


def _exchange_special(rng, dtype, budget) -> Iterator[Case]:
    for case in _exchanges(rng, dtype, budget):
        case.arrays["weights"][case.arrays["experts"] < 0] = np.nan
        yield case
    yield from _odd(rng, _exchanges(rng, dtype, budget))


def _layers(rng, dtype, budget) -> Iterator[Case]:
    yield from drawn(rng, ["mixtral-8x7b", "deepseek-v3"], dtype, budget, once=["deepseek-v3"])


def _other_layer(case: Case) -> Case:
    """Tokens the other way round, and experts too, but not the router that chooses them."""
    experts = case.arrays["layer"]["experts"]
    layer = with_experts(case, **{name: array[::-1].copy() for name, array in experts.items()})
    return case.replace(layer=layer, **_backwards(case, "x", "cotangent"))


def _subject(op: str, prefix: str, first: int, **rest: Any) -> Subject:
    return Subject(op=op, prefix=prefix, first=first, **rest)


SUBJECTS = (
    _subject(
        "grouped_matmul",
        "GRP",
        66,
        cases=_grouped,
        special=_grouped_special,
        judge=judge_rows,
        judge_gradients=_each_given(x=grouped_gradients.judge_dx, w=grouped_gradients.judge_dw),
        other=_other_grouped,
    ),
    _subject(
        "grouped_matmul_mx",
        "MXG",
        77,
        cases=mx.wide,
        special=_mx_special,
        judge=judge_mx,
        judge_gradients=_each_given(x=mx_gradients.judge_dx, w=mx_gradients.judge_dw),
        other=_other_grouped,
    ),
    _subject(
        "route",
        "RTE",
        30,
        cases=_routes,
        special=_route_special,
        judge=judge_route,
        judge_gradients=_each_given(logits=judge_route_gradient),
        other=_other_route,
    ),
    _subject(
        "losses",
        "LOS",
        25,
        cases=_drawn_losses,
        special=_losses_special,
        judge=_judge_losses,
        judge_gradients=_each_given(logits=judge_losses_gradient),
        other=_other_losses,
    ),
    _subject(
        "plan",
        "PLN",
        50,
        cases=_plans,
        special=_plan_special,
        judge=_judge_plan,
        judge_gradients=_each_given(x=plan_gradients.judge_x, weights=plan_gradients.judge_weights),
        other=lambda case: _relabelled(case, 0),
    ),
    _subject(
        "layer",
        "LAY",
        37,
        cases=_layers,
        special=masked_layers,
        judge=judge_output,
        judge_gradients=judge_gradients,
        other=_other_layer,
    ),
    _subject(
        "dispatch_combine",
        "EXC",
        63,
        cases=_exchanges,
        special=_exchange_special,
        judge=judge_exchange,
        judge_gradients=_each_given(
            x=exchange_gradients.judge_x,
            weights=exchange_gradients.judge_weights,
            scale=exchange_gradients.judge_scale,
        ),
        other=lambda case: _relabelled(case, 1),
    ),
)
