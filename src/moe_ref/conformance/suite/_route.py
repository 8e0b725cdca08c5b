"""Checks of `route`: choice and weights."""

import dataclasses

import numpy as np

from moe_ref.conformance.suite._data import dtype_of, integers, normal
from moe_ref.conformance.suite._data_route import (
    LARGE_RULES,
    OTHER_RULES,
    RULES,
    SIGMOID,
    SIGNED_RULES,
    TOKENS,
    UNBIASED,
    coarse,
    random_bias,
    route_case,
    spread,
    zero_bias,
)
from moe_ref.conformance.suite._route_judge import judge_route, judge_ties, judge_valid, route_check
from moe_ref.spec import RouterSpec

_MASKED = ("softmax, renormalised", "sigmoid, bias, top-2 of groups")


def _rules(rng, dtype, budget):
    for label, router in RULES.items():
        for _ in range(1 if budget == "smoke" else 20):
            logits = normal(rng, (TOKENS, router.num_choices), dtype, 2.0 * spread(router))
            yield route_case(label, router, logits, **random_bias(rng, router, dtype))
    for label, router in LARGE_RULES.items():
        logits = normal(rng, (150, router.num_choices), dtype, 2.0)
        yield route_case(label, router, logits, **random_bias(rng, router, dtype))


def _other_rules(rng, dtype, budget):
    for label, router in OTHER_RULES.items():
        logits = normal(rng, (TOKENS, router.num_choices), dtype, 2.0)
        yield route_case(label, router, logits, **random_bias(rng, router, dtype))


def _large_logits(rng, dtype, budget):
    for label in ("softmax, renormalised", "softmax over the chosen", "softmax, ten choices"):
        router = RULES[label]
        logits = coarse(normal(rng, (TOKENS, router.num_choices), "float64", 40.0), dtype)
        yield route_case(f"{label}, logits of size 40", router, logits)
    # Saturated sigmoids tie; their logits do not.
    levels = np.stack([rng.permutation(8) for _ in range(TOKENS)])
    logits = (40 + 4 * levels).astype(dtype_of(dtype))
    router = OTHER_RULES["sigmoid, chosen by logit"]
    yield route_case("saturated sigmoids, chosen by logit", router, logits)


def _ties(rng, dtype, budget):
    for label, router in RULES.items():
        shape = (TOKENS, router.num_choices)
        bias = zero_bias(router, dtype_of(dtype))
        if router.num_groups == 1:
            few = integers(rng, shape, dtype) * dtype_of(dtype).type(spread(router))
        else:
            few = _tied_groups(rng, router, shape).astype(dtype_of(dtype))
        few[0] = 0
        yield route_case(f"{label}, few values", router, few, **bias)


def _signed_zeros(rng, dtype, budget):
    """Zeros of both signs, the largest choice scores but for those of a few experts."""
    for label, router in SIGNED_RULES.items():
        shape = (TOKENS, router.num_choices)
        zeros = np.copysign(0.0, rng.choice([-1.0, 1.0], shape))
        others = rng.choice([-2.0, -1.0, 1.0], shape)
        logits = np.where(rng.random(shape) < 0.7, zeros, others).astype(dtype_of(dtype))
        # A bias of -0 leaves every logit as it is.
        bias = {n: -array for n, array in zero_bias(router, logits.dtype).items()}
        yield route_case(f"{label}, zeros of both signs", router, logits, **bias)


def _tied_groups(rng, router: RouterSpec, shape: tuple[int, int]) -> np.ndarray:
    """Each group holds the same numbers plus 0, 1 or 2, so that some of them tie."""
    size = shape[1] // router.num_groups
    member = np.stack([rng.permutation(size) for _ in range(shape[0])])[:, None, :]
    level = rng.integers(0, 3, (shape[0], router.num_groups, 1))
    return (member / 4 + level - 1).reshape(shape)


def _close(rng, dtype, budget):
    levels = np.stack([rng.permutation(8) for _ in range(TOKENS)])
    logits = (4 + levels / 32).astype(dtype_of(dtype))
    yield route_case("sigmoids 0.0005 apart", UNBIASED, logits)
    if dtype in ("float32", "float64"):
        logits = (levels / 1024).astype(dtype_of(dtype))
        yield route_case("softmax 0.0001 apart", RULES["softmax, renormalised"], logits)


def _negative(rng, dtype, budget):
    router = RULES["sigmoid, bias, top-2 of groups"]
    logits = normal(rng, (TOKENS, 8), dtype, 2.0)
    logits[0] = [2, 1, 0, -1, -2, -3, -2.5, -3.5]
    yield route_case(
        "all choice scores negative", router, logits, bias=-np.ones(8, dtype_of(dtype))
    )


def _steering(rng, dtype, budget):
    router = dataclasses.replace(SIGMOID, k=2, num_experts=4)
    zero = np.zeros((3, 4), dtype_of(dtype))
    bias = np.array([10, 5, 0, 0]).astype(zero.dtype)
    for rule in ("none", "sum"):
        spec = dataclasses.replace(router, renormalize=rule)
        yield route_case(f"large bias, renormalize {rule}", spec, zero, bias=bias)


def _bad_rows(rng, dtype, budget):
    for router in (RULES["softmax"], UNBIASED):
        logits = normal(rng, (TOKENS, 8), dtype)
        logits[0], logits[1], logits[2, 5] = np.nan, -np.inf, np.nan
        yield route_case("rows of NaN, of -inf, with one NaN", router, logits)


def masked(rng, dtype, budget):
    """Padding of NaN, and nothing but padding."""
    for label in _MASKED:
        router = RULES[label]
        logits = normal(rng, (TOKENS, router.num_choices), dtype)
        bias = random_bias(rng, router, dtype)
        mask = rng.random(TOKENS) < 0.5
        logits[~mask] = np.nan
        yield route_case(f"{label}, padding of NaN", router, logits, mask=mask, **bias)
        nothing = np.zeros_like(mask)
        yield route_case(f"{label}, nothing but padding", router, logits, mask=nothing, **bias)


def _grid(rng, dtype, budget):
    for rule in ("none", "sum"):
        for scale in (1.0, 2.5):
            router = RouterSpec(num_experts=4, k=2, renormalize=rule, scale=scale)
            logits = normal(rng, (16, 4), dtype)
            yield route_case(f"renormalize {rule}, scale {scale}", router, logits)


def _small_scores(rng, dtype, budget):
    for label in (
        "sigmoid, bias, top-2 of groups",
        "sqrt-softplus, bias",
        "sigmoid, top-2 of groups of 4, large eps",
    ):
        router = RULES[label]
        logits = coarse(normal(rng, (TOKENS, router.num_choices), "float64") - 15, dtype)
        bias = random_bias(rng, router, dtype)
        yield route_case(f"{label}, logits near -15", router, logits, **bias)


def _sizes(rng, dtype, budget):
    for experts, k, tokens in ((1, 1, 5), (4, 4, 5), (300, 8, 5), (8, 2, 1)):
        router = RouterSpec(num_experts=experts, k=k, renormalize="sum")
        logits = normal(rng, (tokens, experts), dtype)
        yield route_case(f"{experts} experts, k={k}, {tokens} tokens", router, logits)
    empty = normal(rng, (0, 4), dtype)
    yield route_case("no tokens", RouterSpec(num_experts=4, k=2), empty)


CHECKS = (
    route_check(1, "Choice and weights follow the rule, for eleven rules.", _rules),
    route_check(
        2,
        "Ties go to the lower index, of experts and of groups.",
        _ties,
        judge_ties,
        kind="exact",
        formula="score descending, then index ascending",
        needs="lowest_wins",
    ),
    route_check(
        36,
        "Negative zero ties with zero, in experts and in groups: the lower index first.",
        _signed_zeros,
        judge_ties,
        kind="exact",
        formula="-0 = 0; score descending, then index ascending",
        needs="lowest_wins",
    ),
    route_check(
        3, "Rejected groups lose to every kept one, also where scores are negative.", _negative
    ),
    route_check(4, "The selection bias reaches no weight.", _steering),
    route_check(
        5,
        "Rows of NaN or -inf give distinct ids in range, and disturb no other row.",
        _bad_rows,
        judge_valid,
        kind="exact",
        formula="0 <= id < experts, ids distinct",
    ),
    route_check(
        6, "Padding tokens get id -1 and weight 0, whatever they hold.", masked, may_refuse=True
    ),
    route_check(7, "Scale and renormalisation are independent of each other.", _grid),
    route_check(9, "One expert, k = experts, one token and no tokens are right.", _sizes),
    route_check(11, "Large and saturated logits are weighed and chosen right.", _large_logits),
    route_check(
        13,
        "Where scores tie, the chosen are distinct, and nothing better is left out.",
        _ties,
        judge_route,
        formula="min of s[ids] >= max of the rest",
    ),
    route_check(14, "Scores closer than bfloat16 can tell apart are told apart.", _close),
    route_check(15, "Small scores are divided by their own sum and the rule's eps.", _small_scores),
    route_check(16, "Logits as scores, zero experts and choice by logit are right.", _other_rules),
)
