"""Checks of every operation: what later calls and memory of another layout do to results."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case, Manner
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Method, Outputs
from moe_ref.conformance.suite import _plan_capacity
from moe_ref.conformance.suite._calls_cases import SUBJECTS, Cases, Judge, Subject
from moe_ref.conformance.suite._plan_cases import ROUTINGS, plan_case, routed
from moe_ref.conformance.suite._plan_judge import judge_y

_LATER = "later"


def _in_manners(cases: Cases, *manners: Manner) -> Cases:
    """The same inputs, each called in every one of some manners."""

    def changed(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for case in cases(rng, dtype, budget):
            for manner in manners:
                label = case.label if len(manners) == 1 else f"{case.label}, {manner}"
                yield dataclasses.replace(case, manner=manner, label=label)

    return changed


def _of(method: Method, cases: Cases) -> Cases:
    """The same inputs, with a cotangent where one is pulled back."""

    def drawn(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for case in cases(rng, dtype, budget):
            arrays = {n: a for n, a in case.arrays.items() if method == "vjp" or n != "cotangent"}
            yield dataclasses.replace(case, arrays=arrays)

    return drawn


def _both(first: Cases, second: Cases) -> Cases:
    def chained(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        yield from first(rng, dtype, budget)
        yield from second(rng, dtype, budget)

    return chained


def _joint(judge: Judge, other: Any) -> Judge:
    """Judge an input and the one that was called after it."""

    def judged(case: Case, outputs: Outputs) -> Judgement:
        prefix = f"{_LATER}."
        own = {name: a for name, a in outputs.items() if not name.startswith(prefix)}
        later = {n.removeprefix(prefix): a for n, a in outputs.items() if n.startswith(prefix)}
        return all_of(judge(case, own), judge(other(case), later))

    return judged


def _unchanged(case: Case, outputs: Outputs) -> Judgement:
    """That inputs changed is found out beside the kernel, and is a failed call."""
    return Judgement(status="pass")


def _later(other: Any, case: Case) -> Mapping[str, Case]:
    return {_LATER: other(case)}


def _checks(subject: Subject) -> Iterator[Check]:
    methods: tuple[tuple[int, Method], ...] = ((0, "value"), (3, "vjp"))
    for offset, method in methods:
        cases, special = (_of(method, some) for some in (subject.cases, subject.special))
        what = "Gradients" if method == "vjp" else "Results"
        judge = subject.judge_gradients if method == "vjp" else subject.judge
        kind = "gradient" if method == "vjp" else "rounding"
        fields: dict[str, Any] = {"op": subject.op, "method": method}
        number = subject.first + offset
        yield Check(
            id=f"{subject.prefix}-{number}",
            statement=f"{what} stay what they are when another call follows.",
            formula="f(a), f(b), then both are read",
            kind=kind,
            cases=_in_manners(cases, "together"),
            judge=_joint(judge, subject.other),
            related=functools.partial(_later, subject.other),
            **fields,
        )
        yield Check(
            id=f"{subject.prefix}-{number + 1}",
            statement="Inputs hold the same bits after the call"
            + (", of a gradient too." if method == "vjp" else "."),
            formula="bits of every input, before and after",
            kind="exact",
            cases=_in_manners(_both(cases, special), "watched"),
            judge=_unchanged,
            may_refuse=True,
            **fields,
        )
        yield Check(
            id=f"{subject.prefix}-{number + 2}",
            statement=f"{what} are right where arrays are transposed views or have gaps.",
            formula="f(a), a with other strides",
            kind=kind,
            cases=_in_manners(cases, "transposed", "spaced"),
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
    return {_LATER: case.replace(weights=weights, scale=case.arrays["scale"] * 2)}


def _plan_check(number: int, cases: Cases, **options: Any) -> Check:
    return Check(
        id=f"PLN-{number}",
        op="plan",
        statement="A plan brings rows back as often as it is asked to"
        + (", with a capacity too." if options else "."),
        formula="unpermute(rows, w), unpermute(rows', w') of one plan",
        kind="rounding",
        cases=_in_manners(cases, "reused"),
        judge=_joint(judge_y, lambda case: _used_again(case)[_LATER]),
        related=_used_again,
        **options,
    )


CHECKS = (
    *(check for subject in SUBJECTS for check in _checks(subject)),
    _plan_check(56, _plans),
    _plan_check(57, _plan_capacity.full, needs="capacity"),
)
