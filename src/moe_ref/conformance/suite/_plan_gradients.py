"""Checks of `plan`: gradients of x and of the weights, with random cotangents."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import far_from_one
from moe_ref.conformance.suite._plan_cases import (
    ROUTINGS,
    TOKENS,
    gradients,
    large_case,
    order,
    plan_case,
    routed,
    where_token,
    whole_case,
    zeroed,
)


def judge_x(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of x, within the bound."""
    return within(outputs["grad.x"], gradients(case).x, where=where_token(case))


def judge_weights(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of the weights, within the bound."""
    return within(outputs["grad.weights"], gradients(case).weights, where=where_token(case))


def judge_nothing(case: Case, outputs: Outputs) -> Judgement:
    """Slots without a row have no gradient."""
    found = outputs["grad.weights"]
    expected = np.where(order(case).kept, found, np.zeros_like(found))
    return equal(found, expected, where=where_token(case))


def _judge_exact(case: Case, outputs: Outputs) -> Judgement:
    g, found = gradients(case), outputs["grad.x"]
    dx = equal(found, g.x.value.astype(found.dtype), where=where_token(case))
    found = outputs["grad.weights"]
    dw = equal(found, g.weights.value.astype(found.dtype), where=where_token(case))
    return all_of(dx, dw)


def _judge_both(case: Case, outputs: Outputs) -> Judgement:
    return all_of(judge_x(case, outputs), judge_weights(case, outputs))


def _judge_adjoint(case: Case, outputs: Outputs) -> Judgement:
    """Token by token, since no token reaches another."""

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.float64) * b.astype(np.float64)).sum(axis=1)

    arrays = case.arrays
    expected = product(arrays["cotangent"], outputs["y"])
    pairs = ((name, product(arrays[name], outputs[f"grad.{name}"])) for name in ("x", "weights"))
    return all_of(
        *(
            equal(found, expected, where=lambda place, name=name: f"token {place[0]}, {name}")
            for name, found in pairs
        )
    )


def _skewed(rng, dtype, budget):
    for label, options in ROUTINGS.items():
        yield plan_case(rng, label, dtype, routed(rng, **options), cotangent=True)
    yield large_case(rng, dtype, cotangent=True, once=True)
    yield zeroed(plan_case(rng, "Zipf", dtype, routed(rng), cotangent=True))


def _hot(rng, dtype, budget):
    for hot in (0, 7):
        ids = np.full((TOKENS, 1), hot)
        yield plan_case(rng, f"all tokens to expert {hot}", dtype, ids, cotangent=True)
    yield plan_case(rng, "all experts", dtype, routed(rng, k=8), cotangent=True)
    yield plan_case(rng, "one column", dtype, routed(rng), d=1, cotangent=True, once=True)


def _whole(rng, dtype, budget):
    ids = routed(rng, repeats=True, empty=0.2)
    yield whole_case(rng, "integers, repeats, empty slots", dtype, ids, cotangent=True)


def _empty(rng, dtype, budget):
    for poison in (np.nan, 3.0):
        ids = routed(rng, empty=0.4)
        ids[:5] = -1
        label = f"weights of {poison} in empty slots"
        case = plan_case(rng, label, dtype, ids, cotangent=True)
        case.arrays["weights"][ids < 0] = poison
        yield case


def _poisoned(rng, dtype, budget):
    for name in ("x", "cotangent"):
        ids = routed(rng, empty=0.2)
        case = plan_case(rng, f"NaN in token 20 of {name}", dtype, ids, cotangent=True)
        case.arrays[name][20, 2] = np.nan
        yield case


def _far_from_one(rng, dtype, budget):
    def make(label):
        return plan_case(rng, label, dtype, routed(rng), cotangent=True)

    yield from far_from_one(dtype, ("x", "weights", "cotangent"), make)


def _check(number: int, statement: str, cases, judge, formula: str, *wants: str, **more: Any):
    fields: dict[str, Any] = {"kind": "gradient", "wants": wants} | more
    return Check(
        id=f"PLN-{number:02d}",
        op="plan",
        statement=statement,
        formula=formula,
        method="vjp",
        cases=cases,
        judge=judge,
        **fields,
    )


_DX, _DW = "dx[t] = sum_j w[t,j] scale[e] dy[t]", "dw[t,j] = scale[e] <dy[t], x[t]>"
_OF_X, _OF_WEIGHTS = "grad.x", "grad.weights"
CHECKS = (
    _check(31, "The gradient of x sums over a token's copies.", _skewed, judge_x, _DX, _OF_X),
    _check(
        32,
        "The gradient of the weights is right, slot by slot.",
        _skewed,
        judge_weights,
        _DW,
        _OF_WEIGHTS,
    ),
    _check(
        33,
        "The gradients of small integers are exact.",
        _whole,
        _judge_exact,
        f"{_DX}; {_DW}",
        _OF_X,
        _OF_WEIGHTS,
    ),
    _check(
        34,
        "The weight of an empty slot has gradient 0.",
        _empty,
        judge_nothing,
        "dw[t,j] = 0 where e[t,j] = -1",
        _OF_WEIGHTS,
    ),
    _check(
        35,
        "The weight of an empty slot, NaN or not, reaches no gradient of x.",
        _empty,
        judge_x,
        _DX,
        _OF_X,
    ),
    _check(
        36,
        "A NaN in one token, or in its cotangent, reaches no other token's gradients.",
        _poisoned,
        _judge_both,
        f"{_DX}; {_DW}",
        _OF_X,
        _OF_WEIGHTS,
    ),
    _check(
        37,
        "The gradients are right where one expert gets all tokens, or each token all experts, or "
        "where there is one column.",
        _hot,
        _judge_both,
        f"{_DX}; {_DW}",
        _OF_X,
        _OF_WEIGHTS,
    ),
    _check(
        38,
        "Each gradient belongs to the result: it is the transpose of the linear map.",
        _whole,
        _judge_adjoint,
        "<dy[t], y[t]> = <x[t], dx[t]> = <w[t], dw[t]>",
        _OF_X,
        _OF_WEIGHTS,
    ),
    _check(
        39,
        "Numbers far from 1 are neither clipped nor taken for 0 in the gradients.",
        _far_from_one,
        _judge_both,
        f"{_DX}; {_DW}",
        _OF_X,
        _OF_WEIGHTS,
    ),
)
