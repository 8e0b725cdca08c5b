"""Checks of `dispatch_combine`: what comes back."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import dtype_of, far_from_one
from moe_ref.conformance.suite._dispatch_combine_cases import (
    EXPERTS,
    OWN,
    RANKS,
    TOKENS,
    exchange_case,
    flat,
    large_case,
    spread,
    truth,
    where_token,
    whole_case,
)
from moe_ref.conformance.suite._plan_cases import ROUTINGS, large_terms
from moe_ref.conformance.suite._plan_judge import judge_statistics

FORMULA = "y[t] = sum_j w[t,j] scale[e[t,j]] x[t]; |y - oracle| <= bound"


def judge_y(case: Case, outputs: Outputs) -> Judgement:
    """What comes back, within the bound."""
    return within(flat(outputs["y"]), truth(case), where=where_token(case))


def _judge_exact(case: Case, outputs: Outputs) -> Judgement:
    y = flat(outputs["y"])
    return equal(y, truth(case).value.astype(y.dtype), where=where_token(case))


def _judge_statistics(case: Case, outputs: Outputs) -> Judgement:
    return judge_statistics(flat(outputs["y"]), truth(case), case.dtype)


def _judge_twice(case: Case, outputs: Outputs) -> Judgement:
    return equal(flat(outputs["again.y"]), flat(outputs["y"]), where=where_token(case))


def _others(case: Case) -> dict[str, Case]:
    """Other neighbours for the first half of every rank's tokens, and none."""
    half, rows = case.arrays["x"].shape[1] // 2, ("x", "experts", "weights")
    alone = {n: case.arrays[n][:, :half] for n in rows}
    other = {n: case.arrays[n].copy() for n in rows}
    for array in other.values():
        array[:, half:] = array[::-1, half:][:, ::-1]
    return {"alone": case.replace(**alone), "other": case.replace(**other)}


def _judge_others(case: Case, outputs: Outputs) -> Judgement:
    half = case.arrays["x"].shape[1] // 2
    few = case.replace(**{n: case.arrays[n][:, :half] for n in ("x", "experts", "weights")})
    y = flat(outputs["y"][:, :half])
    alone = equal(flat(outputs["alone.y"]), y, where=where_token(few))
    return all_of(alone, equal(flat(outputs["other.y"][:, :half]), y, where=where_token(few)))


def skewed(rng, dtype, budget):
    """Zipf, uniform, repeats, empty slots."""
    for label, options in ROUTINGS.items():
        yield exchange_case(rng, label, dtype, spread(rng, **options))
    yield large_case(rng, dtype)
    if budget == "thorough":
        ids = spread(rng, 8, 64, 6, 64, skew=1.2, empty=0.1)
        yield exchange_case(rng, "64 experts on 8 ranks", dtype, ids, experts=64, d=16)


def _random(rng, dtype, budget):
    yield exchange_case(rng, "Zipf", dtype, spread(rng))


def _any(rng, dtype, budget):
    yield from _random(rng, dtype, budget)
    yield large_case(rng, dtype, once=True)


def _whole(rng, dtype, budget):
    for label, options in ROUTINGS.items():
        yield whole_case(rng, f"integers, {label}", dtype, spread(rng, **options))


def _empty(rng, dtype, budget):
    ids = spread(rng, empty=0.4)
    ids[:, :3] = -1
    yield exchange_case(rng, "many empty slots, tokens without a slot", dtype, ids)
    yield exchange_case(rng, "nothing but empty slots", dtype, np.full_like(ids, -1))


def _empty_weights(rng, dtype, budget):
    for poison in (np.nan, np.inf):
        ids = spread(rng, empty=0.4)
        ids[1, 7] = -1
        case = exchange_case(rng, f"{poison} weights in empty slots", dtype, ids)
        case.arrays["weights"][ids < 0] = poison
        yield case


def _repeated(rng, dtype, budget):
    ids = spread(rng)
    ids[:, ::2, 2] = ids[:, ::2, 0]
    yield exchange_case(rng, "first and last slot of one expert", dtype, ids)
    same = np.repeat(ids[:, :, :1], 3, axis=2)
    yield exchange_case(rng, "all slots of one expert", dtype, same)


def _companions(rng, dtype, budget):
    """Both experts of one rank, and a third one elsewhere."""
    rank = rng.integers(0, RANKS, (RANKS, TOKENS))
    pair = rank[..., None] * OWN + np.arange(OWN)
    third = (pair[..., 0] + OWN * rng.integers(1, RANKS, rank.shape)) % EXPERTS
    ids = rng.permuted(np.concatenate([pair, third[..., None]], axis=2), axis=2)
    yield exchange_case(rng, "two experts on one rank, one elsewhere", dtype, ids)
    ids = spread(rng, k=EXPERTS)
    yield exchange_case(rng, "all experts, more slots than experts of a rank", dtype, ids)


def _poisoned_token(rng, dtype, budget):
    for poison in (np.nan, np.inf):
        case = exchange_case(rng, f"{poison} in token 5 of rank 2", dtype, spread(rng, empty=0.2))
        case.arrays["experts"][2, 5] = [1, 5, 0]
        case.arrays["x"][2, 5, 2] = poison
        yield case


def _poisoned_expert(rng, dtype, budget):
    for expert in (0, 3, EXPERTS - 1):
        ids = spread(rng, empty=0.2)
        case = exchange_case(rng, f"NaN in expert {expert}", dtype, ids)
        case.arrays["scale"][expert] = np.nan
        yield case
    ids = np.where(ids == 5, -1, ids)
    case = exchange_case(rng, "Inf in expert 5, which is idle", dtype, ids)
    case.arrays["scale"][5] = np.inf
    yield case


def _edges(rng, dtype, budget):
    for label, ranks, tokens, k in (
        ("one token a rank", RANKS, 1, 3),
        ("one rank", 1, 48, 3),
        ("two ranks", 2, 24, 3),
        ("one slot", RANKS, TOKENS, 1),
    ):
        yield exchange_case(rng, label, dtype, spread(rng, ranks, tokens, k))
    yield exchange_case(rng, "one column", dtype, spread(rng), d=1, once=True)


def _far_from_one(rng, dtype, budget):
    def make(label):
        return exchange_case(rng, label, dtype, spread(rng))

    yield from far_from_one(dtype, ("x", "weights"), make)


def _nothing(rng, dtype, budget):
    yield exchange_case(rng, "no tokens", dtype, np.zeros((RANKS, 0, 3), np.int32))


def _large_term(rng, dtype, budget):
    ids, terms = large_terms(rng, RANKS * TOKENS, EXPERTS)
    shape = (RANKS, TOKENS, EXPERTS)
    case = exchange_case(rng, "terms of 256 and seven of 1", dtype, ids.reshape(shape))
    weights = (terms / case.arrays["scale"].astype(np.float64)[ids]).reshape(shape)
    x = rng.choice([-2.0, -1.0, 1.0, 2.0], case.arrays["x"].shape)
    kind = dtype_of(dtype)
    yield case.replace(weights=weights.astype(kind), x=x.astype(kind))


def check(number: int, statement: str, cases, judge=judge_y, **options: Any) -> Check:
    """A check of what comes back."""
    fields: dict[str, Any] = {"kind": "rounding", "formula": FORMULA} | options
    return Check(
        id=f"EXC-{number:02d}",
        op="dispatch_combine",
        statement=statement,
        cases=cases,
        judge=judge,
        **fields,
    )


CHECKS = (
    check(1, "Each token gets back what its experts made of it, with their weights.", skewed),
    check(
        2,
        "Small integers are exchanged and combined exactly.",
        _whole,
        _judge_exact,
        kind="exact",
        formula="y = oracle, no rounding occurs",
    ),
    check(
        3,
        "The errors of the combine have the declared size and no direction.",
        _random,
        _judge_statistics,
        kind="statistics",
        formula="rms, score along y and sign(y), count of misrounded",
    ),
    check(4, "An empty slot is sent nowhere and contributes nothing.", _empty),
    check(5, "The weight of an empty slot, NaN or Inf, reaches nothing.", _empty_weights),
    check(6, "An expert that a token names twice counts twice.", _repeated),
    check(7, "Two experts on one rank both count, each with its own weight.", _companions),
    check(8, "A NaN or Inf in one token stays in it.", _poisoned_token),
    check(
        9, "A NaN or Inf in one expert reaches the tokens that name it, no other.", _poisoned_expert
    ),
    check(10, "It takes one token a rank, one rank, two ranks, one slot, one column.", _edges),
    check(11, "No tokens give no tokens.", _nothing, may_refuse=True),
    check(
        12,
        "A large term does not swallow small ones: the combine is as wide as declared.",
        _large_term,
        formula="256 + 7 * 1 = 263, which bfloat16 rounds to 264",
    ),
    check(
        13,
        "Two runs on the same input give the same bits.",
        _any,
        _judge_twice,
        kind="exact",
        related=lambda case: {"again": case},
        needs="deterministic",
        formula="y = y'",
    ),
    check(
        14,
        "A token's bits do not depend on the other tokens.",
        _random,
        _judge_others,
        kind="exact",
        related=_others,
        needs="batch_invariant",
        formula="y[t] = y'[t] where only others changed",
    ),
    check(15, "Numbers far from 1 are neither clipped nor taken for 0.", _far_from_one),
)
