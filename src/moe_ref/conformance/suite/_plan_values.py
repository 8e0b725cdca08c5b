"""Checks of `plan`: group sizes, rows, and what comes back."""

from typing import Any

import ml_dtypes
import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import dtype_of, far_from_one
from moe_ref.conformance.suite._plan_cases import (
    EXPERTS,
    ROUTINGS,
    TOKENS,
    large_case,
    large_terms,
    plan_case,
    routed,
    truth,
    where_token,
    whole_case,
)
from moe_ref.conformance.suite._plan_judge import (
    judge_exact,
    judge_groups,
    judge_order,
    judge_sizes,
    judge_statistics,
    judge_y,
)

_FORMULA = "y[t] = sum_j w[t,j] scale[e[t,j]] x[t]; |y - oracle| <= bound"


def _judge_both(case: Case, outputs: Outputs) -> Judgement:
    return all_of(judge_groups(case, outputs), judge_y(case, outputs))


def _judge_statistics(case: Case, outputs: Outputs) -> Judgement:
    return judge_statistics(outputs["y"], truth(case), case.dtype)


def _judge_twice(case: Case, outputs: Outputs) -> Judgement:
    return equal(outputs["again.y"], outputs["y"], where=where_token(case))


def _judge_half(case: Case, outputs: Outputs) -> Judgement:
    """The first half of the tokens, whose neighbours changed."""
    half = len(case.arrays["x"]) // 2
    y, other = (outputs[name][:half] for name in ("y", "other.y"))
    alone = equal(outputs["alone.y"], y, where=where_token(case))
    return all_of(alone, equal(other, y, where=where_token(case)))


def _other_half(case: Case) -> dict[str, Case]:
    half, rows = len(case.arrays["x"]) // 2, ("x", "experts", "weights")
    alone = {n: case.arrays[n][:half] for n in rows}
    other = {n: np.concatenate([case.arrays[n][:half], case.arrays[n][half:][::-1]]) for n in rows}
    other["experts"][half:] = other["experts"][half:] // 2
    return {"alone": case.replace(**alone), "other": case.replace(**other)}


def _skewed(rng, dtype, budget):
    for label, options in ROUTINGS.items():
        yield plan_case(rng, label, dtype, routed(rng, **options))
    yield large_case(rng, dtype)
    if budget == "thorough":
        ids = routed(rng, 512, 6, 64, skew=1.2, empty=0.1)
        yield plan_case(rng, "Zipf over 64 experts", dtype, ids, experts=64, d=16)


def _copied(rng, dtype, budget):
    yield from _skewed(rng, dtype, budget)
    case = plan_case(rng, "-0 and subnormal numbers", dtype, routed(rng))
    least = ml_dtypes.finfo(case.arrays["x"].dtype).smallest_subnormal
    x = case.arrays["x"]
    x[::3, 1], x[1::3, 2], x[2::3, 3] = -0.0, least, -least
    yield case


def _whole(rng, dtype, budget):
    for label, options in ROUTINGS.items():
        yield whole_case(rng, f"integers, {label}", dtype, routed(rng, **options))


def _random(rng, dtype, budget):
    yield plan_case(rng, "Zipf", dtype, routed(rng))


def _any(rng, dtype, budget):
    yield from _random(rng, dtype, budget)
    yield large_case(rng, dtype, once=True)


def _empty(rng, dtype, budget):
    ids = routed(rng, empty=0.4)
    ids[:5] = -1
    yield plan_case(rng, "many empty slots, tokens without a slot", dtype, ids)
    ids = routed(rng)
    ids[:, 2] = -1
    yield plan_case(rng, "every last slot empty", dtype, ids)
    yield plan_case(rng, "nothing but empty slots", dtype, np.full_like(ids, -1))


def _empty_weights(rng, dtype, budget):
    for poison in (np.nan, np.inf):
        ids = routed(rng, empty=0.4)
        ids[7] = -1
        case = plan_case(rng, f"{poison} weights in empty slots", dtype, ids)
        case.arrays["weights"][ids < 0] = poison
        yield case


def _repeated(rng, dtype, budget):
    ids = routed(rng)
    ids[::2, 2] = ids[::2, 0]
    yield plan_case(rng, "first and last slot of one expert", dtype, ids)
    yield plan_case(rng, "all slots of one expert", dtype, np.repeat(ids[:, :1], 3, axis=1))


def _hot(rng, dtype, budget):
    for hot in (0, 3, EXPERTS - 1):
        label = f"all tokens to expert {hot} of {EXPERTS}"
        yield plan_case(rng, label, dtype, np.full((TOKENS, 1), hot))


def _idle(rng, dtype, budget):
    for label, used in (
        ("the first three experts idle", [3, 4, 5, 6, 7]),
        ("the last three experts idle", [0, 1, 2, 3, 4]),
        ("every other expert idle", [1, 3, 5, 7]),
    ):
        ids = np.asarray(used)[routed(rng, experts=len(used))]
        yield plan_case(rng, label, dtype, ids)


def _edges(rng, dtype, budget):
    for label, tokens, k, experts in (
        ("one token", 1, 3, 8),
        ("33 tokens", 33, 3, 8),
        ("one slot", TOKENS, 1, 8),
        ("as many slots as experts", TOKENS, 8, 8),
        ("one expert", 16, 1, 1),
    ):
        ids = routed(rng, tokens, k, experts)
        yield plan_case(rng, label, dtype, ids, experts=experts)
    yield plan_case(rng, "one column", dtype, routed(rng, TOKENS, 3, 8), d=1, once=True)


def _far_from_one(rng, dtype, budget):
    def make(label):
        return plan_case(rng, label, dtype, routed(rng))

    yield from far_from_one(dtype, ("x", "weights"), make)


def _nothing(rng, dtype, budget):
    yield plan_case(rng, "no tokens", dtype, np.zeros((0, 3), np.int32))


def _poisoned(rng, dtype, budget):
    for poison in (np.nan, np.inf):
        case = plan_case(rng, f"{poison} in token 20", dtype, routed(rng, empty=0.2))
        case.arrays["experts"][20] = [1, 5, 0]
        case.arrays["x"][20, 2] = poison
        yield case


def _many(rng, dtype, budget):
    if dtype != "float32":
        return
    ids = routed(rng, 20_001, 2, 4, skew=2.0)
    # The busiest expert first, so that the last one begins past 32767.
    ids = np.argsort(np.argsort(-np.bincount(ids.reshape(-1), minlength=4)))[ids]
    yield plan_case(rng, "40002 rows", dtype, ids, experts=4, d=2)


def _large_term(rng, dtype, budget):
    ids, terms = large_terms(rng, TOKENS, EXPERTS)
    case = plan_case(rng, "terms of 256 and seven of 1", dtype, ids)
    weights = terms / case.arrays["scale"].astype(np.float64)[ids]
    x = rng.choice([-2.0, -1.0, 1.0, 2.0], case.arrays["x"].shape)
    kind = dtype_of(dtype)
    yield case.replace(weights=weights.astype(kind), x=x.astype(kind))


def _check(number: int, statement: str, cases, judge=judge_y, **options: Any) -> Check:
    fields: dict[str, Any] = {"kind": "rounding", "formula": _FORMULA} | options
    return Check(
        id=f"PLN-{number:02d}", op="plan", statement=statement, cases=cases, judge=judge, **fields
    )


_ROWS: dict[str, Any] = {"kind": "exact", "formula": "rows of group e = {x[t]: e[t,j] = e}"}
CHECKS = (
    _check(
        1,
        "Group sizes count the slots of every expert.",
        _skewed,
        judge_sizes,
        kind="exact",
        formula="group_sizes[e] = #{(t,j): e[t,j] = e}",
    ),
    _check(2, "Each group holds exact copies of its tokens.", _copied, judge_groups, **_ROWS),
    _check(
        3,
        "Within a group, rows are in token order.",
        _skewed,
        judge_order,
        kind="exact",
        formula="rows = x[t], slots sorted stably by expert",
        needs="stable",
    ),
    _check(4, "Each token gets back its rows with their own weights.", _skewed),
    _check(
        5,
        "Small integers are combined exactly.",
        _whole,
        judge_exact,
        kind="exact",
        formula="y = oracle, no rounding occurs",
    ),
    _check(
        6,
        "The errors of the combine have the declared size and no direction.",
        _random,
        _judge_statistics,
        kind="statistics",
        formula="rms, score along y and sign(y), count of misrounded",
    ),
    _check(7, "An empty slot has no row and contributes nothing.", _empty, _judge_both),
    _check(8, "The weight of an empty slot, NaN or Inf, reaches nothing.", _empty_weights),
    _check(9, "An expert that a token names twice counts twice.", _repeated, _judge_both),
    _check(10, "One expert may get all tokens.", _hot, _judge_both),
    _check(11, "Idle experts, first, last or between, shift nothing.", _idle, _judge_both),
    _check(
        12,
        "It takes one token, an odd number, one slot, as many as experts, one expert, one column.",
        _edges,
        _judge_both,
    ),
    _check(13, "No tokens give no tokens.", _nothing, _judge_both, may_refuse=True),
    _check(14, "A NaN or Inf in one token stays in it.", _poisoned, _judge_both),
    _check(
        15, "40002 rows, more than 32767 and 255 for one expert, are counted.", _many, _judge_both
    ),
    _check(
        16,
        "A large term does not swallow small ones: the combine is as wide as declared.",
        _large_term,
        formula="256 + 7 * 1 = 263, which bfloat16 rounds to 264",
    ),
    _check(
        17,
        "Two runs on the same input give the same bits.",
        _any,
        _judge_twice,
        kind="exact",
        related=lambda case: {"again": case},
        needs="deterministic",
        formula="y = y'",
    ),
    _check(
        18,
        "A token's bits do not depend on the other tokens.",
        _random,
        _judge_half,
        kind="exact",
        related=_other_half,
        needs="batch_invariant",
        formula="y[t] = y'[t] where only others changed",
    ),
    _check(19, "Numbers far from 1 are neither clipped nor taken for 0.", _far_from_one),
)
