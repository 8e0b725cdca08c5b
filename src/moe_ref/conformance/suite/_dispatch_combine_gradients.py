"""Checks of `dispatch_combine`: gradients equal those without ranks, with random cotangents."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import far_from_one
from moe_ref.conformance.suite._dispatch_combine_cases import (
    EXPERTS,
    exchange_case,
    flat,
    gradients,
    large_case,
    sent,
    spread,
    where_token,
    whole_case,
)
from moe_ref.conformance.suite._dispatch_combine_laws import fewer_ranks
from moe_ref.conformance.suite._dispatch_combine_traffic import ASYMMETRIC, to_rank
from moe_ref.conformance.suite._plan_cases import ROUTINGS, zeroed

Judge = Callable[[Case, Outputs], Judgement]
_X, _WEIGHTS, _SCALE = "grad.x", "grad.weights", "grad.scale"


def judge_x(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of x, within the bound."""
    return within(flat(outputs[_X]), gradients(case).x, where=where_token(case))


def judge_weights(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of the weights, within the bound."""
    return within(flat(outputs[_WEIGHTS]), gradients(case).weights, where=where_token(case))


def judge_scale(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of the scale, within the bound."""
    return within(outputs[_SCALE], gradients(case).scale, where=_where_expert, whole=True)


def _where_expert(place: tuple[int, ...]) -> str:
    return f"gradient of expert {place[0]}"


def _each(*judges: Judge) -> Judge:
    def judge(case: Case, outputs: Outputs) -> Judgement:
        return all_of(*(one(case, outputs) for one in judges))

    return judge


def _judge_exact(case: Case, outputs: Outputs) -> Judgement:
    g, dx, dw = gradients(case), flat(outputs[_X]), flat(outputs[_WEIGHTS])
    return all_of(
        equal(dx, g.x.value.astype(dx.dtype), where=where_token(case)),
        equal(dw, g.weights.value.astype(dw.dtype), where=where_token(case)),
    )


def _judge_empty(case: Case, outputs: Outputs) -> Judgement:
    dw = outputs[_WEIGHTS]
    expected = np.where(case.arrays["experts"] >= 0, dw, np.zeros_like(dw))
    return equal(flat(dw), flat(expected), where=where_token(case))


def _judge_idle(case: Case, outputs: Outputs) -> Judgement:
    ds = outputs[_SCALE]
    named = np.isin(np.arange(len(ds)), case.arrays["experts"])
    return equal(ds, np.where(named, ds, np.zeros_like(ds)), where=_where_expert)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (flat(a).astype(np.float64) * flat(b).astype(np.float64)).sum(axis=1)


def _judge_adjoint(case: Case, outputs: Outputs) -> Judgement:
    """Token by token, since no token reaches another."""
    arrays = case.arrays
    expected = _product(arrays["cotangent"], outputs["y"])
    return all_of(
        equal(_product(arrays["x"], outputs[_X]), expected, where=where_token(case)),
        equal(_product(arrays["weights"], outputs[_WEIGHTS]), expected, where=where_token(case)),
    )


def _judge_fewer(case: Case, outputs: Outputs) -> Judgement:
    wide = case.dtype in ("float32", "float64")  # in others the sum over tokens may be rounded
    judged = []
    for name in ("one", "two"):
        for gradient in (_X, _WEIGHTS, _SCALE) if wide else (_X, _WEIGHTS):
            other, own = outputs[f"{name}.{gradient}"], outputs[gradient]
            if gradient == _SCALE:
                judged.append(equal(other, own, where=_where_expert))
            else:
                judged.append(equal(flat(other), flat(own), where=where_token(case)))
    return all_of(*judged)


def _skewed(rng, dtype, budget):
    for label, options in ROUTINGS.items():
        yield exchange_case(rng, label, dtype, spread(rng, **options), cotangent=True)
    yield large_case(rng, dtype, cotangent=True, once=True)
    yield zeroed(exchange_case(rng, "Zipf", dtype, spread(rng), cotangent=True))


def _lopsided(rng, dtype, budget):
    for label, ids in (
        ("different counts for every pair", sent(rng, ASYMMETRIC)),
        ("all tokens to rank 0", to_rank(rng, 0)),
        ("all experts", spread(rng, k=EXPERTS)),
    ):
        yield exchange_case(rng, label, dtype, ids, cotangent=True)
    yield exchange_case(rng, "one column", dtype, spread(rng), d=1, cotangent=True, once=True)


def _whole(rng, dtype, budget):
    ids = spread(rng, repeats=True, empty=0.2)
    yield whole_case(rng, "integers, repeats, empty slots", dtype, ids, cotangent=True)


def _empty(rng, dtype, budget):
    for poison in (np.nan, 3.0):
        ids = spread(rng, empty=0.4)
        ids[:, :3] = -1
        label = f"weights of {poison} in empty slots"
        case = exchange_case(rng, label, dtype, ids, cotangent=True)
        case.arrays["weights"][ids < 0] = poison
        yield case


def _idle(rng, dtype, budget):
    """Experts of one rank, and one of another, get no token; they hold NaN."""
    ids = spread(rng, experts=5)
    ids = np.where(ids >= 0, ids + (ids >= 2) * 3, -1)
    case = exchange_case(rng, "experts 2, 3 and 4 idle, of NaN", dtype, ids, cotangent=True)
    case.arrays["scale"][2:5] = np.nan
    yield case


def _poisoned(rng, dtype, budget):
    for name in ("x", "cotangent"):
        ids = spread(rng, empty=0.2)
        ids[2, 5] = [1, 4, 1]
        label = f"NaN in token 5 of rank 2, {name}"
        case = exchange_case(rng, label, dtype, ids, cotangent=True)
        case.arrays[name][2, 5, 3] = np.nan
        yield case


def _far_from_one(rng, dtype, budget):
    def make(label):
        return exchange_case(rng, label, dtype, spread(rng), cotangent=True)

    yield from far_from_one(dtype, ("x", "weights", "cotangent"), make)


def _check(
    number: int, statement: str, cases, judge: Judge, formula: str, *wants: str, **more: Any
) -> Check:
    return Check(
        id=f"EXC-{number:02d}",
        op="dispatch_combine",
        statement=statement,
        formula=formula,
        kind="gradient",
        method="vjp",
        cases=cases,
        judge=judge,
        wants=wants,
        **more,
    )


_DX, _DW = "dx[t] = sum_j w[t,j] scale[e] dy[t]", "dw[t,j] = scale[e] <dy[t], x[t]>"
_DS = "dscale[e] = sum of w[t,j] <dy[t], x[t]> over the tokens of all ranks"
CHECKS = (
    _check(51, "The gradient of x sums over all ranks it went to.", _skewed, judge_x, _DX, _X),
    _check(
        52,
        "The gradient of the weights comes back to their slots.",
        _skewed,
        judge_weights,
        _DW,
        _WEIGHTS,
    ),
    _check(
        53,
        "An expert's gradient sums over the tokens of all ranks, once.",
        _skewed,
        judge_scale,
        _DS,
        _SCALE,
    ),
    _check(
        54,
        "The gradients are right where traffic is lopsided, and of one column.",
        _lopsided,
        _each(judge_x, judge_weights, judge_scale),
        f"{_DX}; {_DW}; {_DS}",
        _X,
        _WEIGHTS,
        _SCALE,
    ),
    _check(
        55,
        "The gradients of small integers are exact.",
        _whole,
        _judge_exact,
        f"{_DX}; {_DW}",
        _X,
        _WEIGHTS,
    ),
    _check(
        56,
        "The weight of an empty slot has gradient 0.",
        _empty,
        _judge_empty,
        "dw[t,j] = 0 where e[t,j] = -1",
        _WEIGHTS,
    ),
    _check(
        57,
        "The weight of an empty slot, NaN or not, reaches no gradient of x or of an expert.",
        _empty,
        _each(judge_x, judge_scale),
        f"{_DX}; {_DS}",
        _X,
        _SCALE,
    ),
    _check(
        58,
        "An expert without tokens has gradient 0, even where it holds NaN.",
        _idle,
        _judge_idle,
        "dscale[e] = 0 where nobody names e",
        _SCALE,
    ),
    _check(
        59,
        "A NaN in one token, or in its cotangent, reaches its own gradients and its experts'.",
        _poisoned,
        _each(judge_x, judge_weights, judge_scale),
        f"{_DX}; {_DW}; {_DS}",
        _X,
        _WEIGHTS,
        _SCALE,
    ),
    _check(
        60,
        "Each gradient belongs to the result: it is the transpose of the linear map.",
        _whole,
        _judge_adjoint,
        "<dy[t], y[t]> = <x[t], dx[t]> = <w[t], dw[t]>",
        _X,
        _WEIGHTS,
    ),
    _check(
        61,
        "One, two and four ranks give the same gradients.",
        _whole,
        _judge_fewer,
        "dx, dw, dscale on 1 rank = on 2 = on 4",
        _X,
        _WEIGHTS,
        _SCALE,
        related=fewer_ranks,
    ),
    _check(
        73,
        "Numbers far from 1 are neither clipped nor taken for 0 in the gradients.",
        _far_from_one,
        _each(judge_x, judge_weights, judge_scale),
        f"{_DX}; {_DW}; {_DS}",
        _X,
        _WEIGHTS,
        _SCALE,
    ),
)
