"""Checks of operations that are given ids: their integers may be narrow or wide."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance.operations import Method
from moe_ref.conformance.suite import _dispatch_combine_cases as exchanges
from moe_ref.conformance.suite import _plan_cases as plans
from moe_ref.conformance.suite._calls_cases import SUBJECTS
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.conformance.suite._data_route import TOKENS, route_case
from moe_ref.conformance.suite._related import of_method
from moe_ref.spec import RouterSpec

# Experts, by the dtype of the ids: it holds every id, but not its product with a stride.
_EXPERTS = {"int8": 120, "int16": 300, "int64": 300}


def _losses(rng: np.random.Generator, dtype: str, experts: int) -> Case:
    router = RouterSpec(num_experts=experts, k=3)
    logits = normal(rng, (TOKENS, experts), dtype, 2.0)
    cotangent = np.array([1, -0.75]).astype(dtype_of(dtype))
    ids = rng.permuted(np.tile(np.arange(experts), (TOKENS, 1)), axis=1)[:, :3]
    return route_case("", router, logits, experts=ids, cotangent=cotangent)


def _plan(rng: np.random.Generator, dtype: str, experts: int) -> Case:
    ids = plans.routed(rng, experts=experts, skew=0.0, empty=0.1)
    return plans.plan_case(rng, "", dtype, ids, experts=experts, cotangent=True)


def _exchange(rng: np.random.Generator, dtype: str, experts: int) -> Case:
    ids = exchanges.spread(rng, experts=experts, skew=0.0, empty=0.1)
    return exchanges.exchange_case(rng, "", dtype, ids, experts=experts, cotangent=True)


def _checks(op: str, number: int, drawn: Any) -> Iterator[Check]:
    (subject,) = (each for each in SUBJECTS if each.op == op)

    def cases(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for kind, experts in _EXPERTS.items():
            case = drawn(rng, dtype, experts)
            case = case.replace(experts=case.arrays["experts"].astype(kind))
            label = f"ids of {kind}, {experts} experts"
            yield dataclasses.replace(case, label=label, once=True)

    methods: tuple[Method, ...] = ("value", "vjp")
    for offset, method in enumerate(methods):
        what = "Results" if method == "value" else "Gradients"
        yield Check(
            id=f"{subject.prefix}-{number + offset}",
            op=op,
            statement=f"{what} are right for ids of 8, 16 and 64 bits, or these are refused.",
            formula="f(int8 ids), f(int16 ids), f(int64 ids)",
            kind="rounding" if method == "value" else "gradient",
            method=method,
            cases=of_method(method, cases),
            judge=subject.judge if method == "value" else subject.judge_gradients,
            may_refuse=True,
        )


CHECKS = (
    *_checks("losses", 33, _losses),
    *_checks("plan", 60, _plan),
    *_checks("dispatch_combine", 71, _exchange),
)
