"""Checks of every operation: what later calls and memory of another layout do to results."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance.operations import Method
from moe_ref.conformance.suite import _plan_capacity
from moe_ref.conformance.suite._calls_cases import SUBJECTS, Subject
from moe_ref.conformance.suite._plan_cases import ROUTINGS, plan_case, routed
from moe_ref.conformance.suite._plan_judge import judge_y
from moe_ref.conformance.suite._related import (
    Inputs,
    Related,
    chained,
    each_of,
    in_manners,
    of_method,
    unchanged,
)


def _later(subject: Subject) -> Related:
    return lambda case: {"later": subject.other(case)}


# Weights that are shares sum to 1, and losses are no array.
SUMMED = ("grouped_matmul", "grouped_matmul_mx", "plan", "layer", "dispatch_combine")
# Where a gradient is then a multiple of the sum of a token, which must not vanish.
OF_TOKENS = ("plan", "dispatch_combine")


def _of_a_sum(subject: Subject, cases: Inputs) -> Inputs:
    """The first of the inputs with the cotangent that the sum of all results has."""

    def drawn(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for case in itertools.islice(cases(rng, dtype, budget), 1):
            ones = case.replace(cotangent=np.ones_like(case.arrays["cotangent"]))
            if subject.op in OF_TOKENS:
                x = case.arrays["x"]
                ones = ones.replace(x=np.copysign(x, x[..., :1]))
            yield dataclasses.replace(ones, label=f"{case.label}, gradient of a sum")

    return drawn


def _checks(subject: Subject) -> Iterator[Check]:
    methods: tuple[tuple[int, Method], ...] = ((0, "value"), (3, "vjp"))
    for offset, method in methods:
        cases, special = (of_method(method, some) for some in (subject.cases, subject.special))
        what = "Gradients" if method == "vjp" else "Results"
        judge = subject.judge_gradients if method == "vjp" else subject.judge
        kind = "gradient" if method == "vjp" else "rounding"
        fields: dict[str, Any] = {"op": subject.op, "method": method}
        number = subject.first + offset
        summed = method == "vjp" and subject.op in SUMMED
        yield Check(
            id=f"{subject.prefix}-{number}",
            statement=f"{what} stay what they are when another call follows.",
            formula="f(a), f(b), then both are read",
            kind=kind,
            cases=in_manners(cases, "together"),
            judge=each_of(judge, _later(subject)),
            related=_later(subject),
            **fields,
        )
        yield Check(
            id=f"{subject.prefix}-{number + 1}",
            statement="Inputs hold the same bits after the call"
            + (", of a gradient too." if method == "vjp" else "."),
            formula="bits of every input, before and after",
            kind="exact",
            cases=in_manners(chained(cases, special), "watched"),
            judge=unchanged,
            may_refuse=True,
            **fields,
        )
        yield Check(
            id=f"{subject.prefix}-{number + 2}",
            statement=f"{what} are right where arrays are transposed views or have gaps"
            + (", or the cotangent is one number, expanded." if summed else "."),
            formula="f(a), a with other strides",
            kind=kind,
            cases=chained(
                in_manners(cases, "transposed", "spaced"),
                in_manners(_of_a_sum(subject, cases), "expanded") if summed else chained(),
            ),
            judge=judge,
            needs="any_layout",
            may_refuse=True,
            **fields,
        )


def _plans(rng, dtype, budget) -> Iterator[Case]:
    for label, options in ROUTINGS.items():
        yield plan_case(rng, label, dtype, routed(rng, **options))


def _used_again(case: Case) -> Mapping[str, Case]:
    """Other weights, of the same signs, and other factors of the same plan."""
    weights = case.arrays["weights"]
    factor = np.resize([1.5, 0.5, 0.75], weights.shape[1])
    weights = (weights.astype(np.float64) * factor).astype(weights.dtype)
    return {"later": case.replace(weights=weights, scale=case.arrays["scale"] * 2)}


def _plan_check(number: int, cases: Inputs, **options: Any) -> Check:
    return Check(
        id=f"PLN-{number}",
        op="plan",
        statement="A plan brings rows back as often as it is asked to"
        + (", with a capacity too." if options else "."),
        formula="unpermute(rows, w), unpermute(rows', w') of one plan",
        kind="rounding",
        cases=in_manners(cases, "reused"),
        judge=each_of(judge_y, _used_again),
        related=_used_again,
        **options,
    )


CHECKS = (
    *(check for subject in SUBJECTS for check in _checks(subject)),
    _plan_check(56, _plans),
    _plan_check(57, _plan_capacity.full, needs="capacity"),
)
