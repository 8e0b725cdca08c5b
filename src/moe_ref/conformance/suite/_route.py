"""Checks of `route`: choice and weights."""

import dataclasses

import numpy as np

from moe_ref._counted import counted
from moe_ref.conformance.suite._data import dtype_of, integers, normal
from moe_ref.conformance.suite._data_route import (
    EVERY_RULE,
    GROUPED,
    LARGE_RULES,
    LARGE_TOKENS,
    ODD,
    OTHER_RULES,
    PLAIN,
    RULES,
    SIGMOID,
    SIGNED_RULES,
    TOKENS,
    UNBIASED,
    coarse,
    random_bias,
    route_case,
    set_one,
    spread,
    tokens_of,
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
        logits = normal(rng, (LARGE_TOKENS, router.num_choices), dtype, 2.0)
        yield route_case(label, router, logits, **random_bias(rng, router, dtype))


def _other_rules(rng, dtype, budget):
    for label, router in OTHER_RULES.items():
        logits = normal(rng, (TOKENS, router.num_choices), dtype, 2.0)
        yield route_case(label, router, logits, **random_bias(rng, router, dtype))


def _large_logits(rng, dtype, budget):
    for label in (
        "softmax, renormalised",
        "softmax over the chosen",
        "softmax, ten choices",
        "sqrt-softplus, bias",
    ):
        router = RULES[label]
        logits = coarse(normal(rng, (TOKENS, router.num_choices), "float64", 40.0), dtype)
        bias = random_bias(rng, router, dtype)
        yield route_case(f"{label}, logits of size 40", router, logits, **bias)
    # No softmax feels the offset; multiples of 4 up to 1024 are bfloat16 numbers.
    levels = np.stack([rng.permutation(8) for _ in range(TOKENS)])
    for label in ("softmax, renormalised", "softmax over the chosen"):
        for offset in (120, -150, 600, -628):
            logits = (offset + 4 * levels).astype(dtype_of(dtype))
            yield route_case(f"{label}, logits near {offset}", RULES[label], logits)
    router, logits = RULES["sqrt-softplus, bias"], (120 + 4 * levels).astype(dtype_of(dtype))
    bias = zero_bias(router, logits.dtype)
    yield route_case("sqrt-softplus, logits near 120", router, logits, **bias)
    router = RULES["sigmoid, top-2 of groups of 4, large eps"]
    logits = normal(rng, (TOKENS, router.num_choices), dtype)
    set_one(rng, logits, np.inf)
    yield route_case("one sigmoid of Inf", router, logits)
    # Saturated sigmoids tie; their logits do not.
    router = OTHER_RULES["sigmoid, chosen by logit"]
    for label, logits in (("", 40 + 4 * levels), (", up to 57344", 8192.0 * levels)):
        label = f"saturated sigmoids, chosen by logit{label}"
        yield route_case(label, router, logits.astype(dtype_of(dtype)))


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
    for label, router in LARGE_RULES.items():
        bias = zero_bias(router, dtype_of(dtype))
        few = _tied_far_apart(rng, router).astype(dtype_of(dtype))
        yield route_case(f"{label}, few values", router, few, **bias)


def _signed_zeros(rng, dtype, budget):
    """Zeros of both signs, the largest choice scores but for those of a few experts."""
    for label, router in SIGNED_RULES.items():
        shape = (tokens_of(router), router.num_choices)
        zeros = np.copysign(0.0, rng.choice([-1.0, 1.0], shape))
        others = rng.choice([-2.0, -1.0, 1.0], shape)
        zero = rng.random(shape) < 1 - 2.4 / router.num_choices
        logits = np.where(zero, zeros, others).astype(dtype_of(dtype))
        # A bias of -0 leaves every logit as it is.
        bias = {n: -array for n, array in zero_bias(router, logits.dtype).items()}
        yield route_case(f"{label}, zeros of both signs", router, logits, **bias)


def _tied_groups(rng, router: RouterSpec, shape: tuple[int, int]) -> np.ndarray:
    """Each group holds the same numbers plus 0, 1 or 2, so that some of them tie.

    Of large groups, all but three numbers are the same.
    """
    size = shape[1] // router.num_groups
    member = np.tile(np.arange(size), (shape[0], router.num_groups, 1))
    member = np.maximum(rng.permuted(member, axis=2) - max(size - 4, 0), 0)
    level = rng.integers(0, 3, (shape[0], router.num_groups, 1))
    return (member / 4 + level - 1).reshape(shape)


def _tied_far_apart(rng, router: RouterSpec) -> np.ndarray:
    """Values of which so many are the same that a tie decides, between experts near and far."""
    shape = (LARGE_TOKENS, router.num_choices)
    if router.num_groups > 1:
        return _tied_groups(rng, router, shape)
    few = rng.integers(-3, 4, shape)
    # In every other token there are about as many ones as choices, anywhere among zeros.
    few[::2] = rng.random(few[::2].shape) < router.k / router.num_choices
    return few


def _close(rng, dtype, budget):
    levels = np.stack([rng.permutation(8) for _ in range(TOKENS)])
    logits = (4 + levels / 32).astype(dtype_of(dtype))
    yield route_case("sigmoids 0.0005 apart", UNBIASED, logits)
    logits = (9 + levels).astype(dtype_of(dtype))
    yield route_case("sigmoids close to 1", UNBIASED, logits)
    if dtype in ("float32", "float64"):
        logits = (levels / 1024).astype(dtype_of(dtype))
        yield route_case("softmax 0.0001 apart", RULES["softmax, renormalised"], logits)


def _negative(rng, dtype, budget):
    for router in (RULES["sigmoid, bias, top-2 of groups"], LARGE_RULES[GROUPED]):
        choices = router.num_choices
        logits = normal(rng, (tokens_of(router), choices), dtype, 2.0)
        logits[0, :8] = [2, 1, 0, -1, -2, -3, -2.5, -3.5]
        for size in (1,) if choices > 8 else (1, 30000):
            label = f"all choice scores near {-size}, {choices} experts"
            bias = np.full(choices, -size).astype(dtype_of(dtype))
            yield route_case(label, router, logits, bias=bias)


def _steering(rng, dtype, budget):
    router = dataclasses.replace(SIGMOID, k=2, num_experts=4)
    zero = np.zeros((3, 4), dtype_of(dtype))
    bias = np.array([15, 12, 20, 0]).astype(zero.dtype)
    for rule in ("none", "sum"):
        spec = dataclasses.replace(router, renormalize=rule)
        yield route_case(f"large bias, renormalize {rule}", spec, zero, bias=bias)


def _bad_rows(rng, dtype, budget):
    nan, inf = np.nan, np.inf
    for router in (RULES["softmax"], UNBIASED, LARGE_RULES[PLAIN], LARGE_RULES[ODD]):
        logits = normal(rng, (tokens_of(router), router.num_choices), dtype)
        negative = np.copysign(nan, -1.0)
        for first in {0, len(logits) - 10}:
            logits[first], logits[first + 1], logits[first + 2, 5] = nan, -inf, nan
            logits[first + 3], logits[first + 4], logits[first + 5, 5] = negative, inf, negative
            logits[first + 6, -2], logits[first + 7, [1, 4]] = inf, inf
            logits[first + 8, [1, 4]] = inf, -inf
        label = f"rows of NaN, Inf, with one of them, {router.num_choices} experts"
        yield route_case(label, router, logits)


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
    for label in (GROUPED, PLAIN):
        router = LARGE_RULES[label]
        logits = normal(rng, (LARGE_TOKENS, router.num_choices), dtype)
        bias = random_bias(rng, router, dtype)
        mask = rng.random(LARGE_TOKENS) < 0.5
        mask[128:256] = False  # a whole tile of padding
        logits[~mask] = np.nan
        label = f"{label}, padding of NaN"
        yield route_case(label, router, logits, once=True, mask=mask, **bias)


def _grid(rng, dtype, budget):
    for rule in ("none", "sum"):
        for scale in (1.0, 2.5):
            router = RouterSpec(num_experts=4, k=2, renormalize=rule, scale=scale)
            logits = normal(rng, (16, 4), dtype)
            yield route_case(f"renormalize {rule}, scale {scale}", router, logits)


def _small_scores(rng, dtype, budget):
    for label, offset in (
        ("sigmoid, bias, top-2 of groups", -15),
        ("sigmoid, bias, top-2 of groups", -46),
        ("sqrt-softplus, bias", -15),
        ("sqrt-softplus, bias", -60),
        ("sigmoid, top-2 of groups of 4, large eps", -15),
        (GROUPED, -46),
    ):
        router = EVERY_RULE[label]
        shape = (tokens_of(router), router.num_choices)
        logits = coarse(normal(rng, shape, "float64") + offset, dtype)
        bias = random_bias(rng, router, dtype)
        yield route_case(f"{label}, logits near {offset}", router, logits, **bias)


def _sizes(rng, dtype, budget):
    for experts, k, tokens in ((1, 1, 5), (4, 4, 5), (300, 8, 5), (8, 2, 1)):
        label = f"{counted(experts, 'expert')}, k={k}, {counted(tokens, 'token')}"
        router = RouterSpec(num_experts=experts, k=k, renormalize="sum")
        logits = normal(rng, (tokens, experts), dtype)
        yield route_case(label, router, logits)
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
        "Rows of NaN or Inf, of either sign, give distinct ids in range, and disturb no other row.",
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
