"""Checks of `losses`: values, load and step."""

from typing import Any

import numpy as np

from moe_ref._counted import counted
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.conformance.suite._data_route import TOKENS, coarse, route_case
from moe_ref.conformance.suite._losses_judge import (
    judge_load,
    judge_nothing,
    judge_step,
    losses_check,
)
from moe_ref.spec import RouterSpec

EXPERTS, K = 8, 2
RULES = {
    score: RouterSpec(num_experts=EXPERTS, k=K, score=score)
    for score in ("softmax", "softmax_selected", "sigmoid", "sqrt_softplus", "none")
}
_TEN = RouterSpec(num_experts=10, k=2)
LARGE = RouterSpec(num_experts=300, k=11)
LARGE_TOKENS = 301  # a second block of 256, and no tile is full at the end
_MANY = 1200  # tokens: a byte and a bfloat16 cannot count them


def chosen(rng: np.random.Generator, tokens: int, router: RouterSpec) -> np.ndarray:
    """Distinct ids for each token, the lower ones more often."""
    level = -0.3 * np.arange(router.num_choices)
    noise = rng.gumbel(size=(tokens, router.num_choices))
    return np.argsort(-(level + noise), axis=1)[:, : router.k].astype(np.int32)


def drawn(rng: np.random.Generator, label: str, dtype: str, **change: Any):
    """Random logits and ids under the rule of that name; `change` replaces arrays."""
    router = RULES[label]
    arrays = {
        "logits": normal(rng, (TOKENS, EXPERTS), dtype, 2.0),
        "experts": chosen(rng, TOKENS, router),
    }
    return route_case(label, router, **arrays | change)


def large(rng: np.random.Generator, dtype: str, once: bool = False, **change: Any):
    """The same of many experts, all of them about as popular."""
    noise = rng.random((LARGE_TOKENS, LARGE.num_choices))
    arrays = {
        "logits": normal(rng, noise.shape, dtype, 2.0),
        "experts": np.argsort(noise, axis=1)[:, : LARGE.k].astype(np.int32),
    }
    return route_case("11 of 300", LARGE, once=once, **arrays | change)


def _rules(rng, dtype, budget):
    for label in RULES:
        for _ in range(1 if budget == "smoke" else 20):
            yield drawn(rng, label, dtype)
    yield large(rng, dtype)


def _uniform(rng, dtype, budget):
    """Equal logits and equal use: 1, whatever k is."""
    for k in (1, K, EXPERTS):
        router = RouterSpec(num_experts=EXPERTS, k=k)
        experts = (np.arange(TOKENS)[:, None] + np.arange(k)) % EXPERTS
        logits = np.zeros((TOKENS, EXPERTS), dtype_of(dtype))
        yield route_case(f"uniform, k={k}", router, logits, experts=experts.astype(np.int32))


def masked(rng, dtype, budget):
    """Padding of NaN, at the end and anywhere; it all names expert 0."""
    for label in ("softmax", "sigmoid"):
        for place in ("end", "anywhere"):
            case = drawn(rng, label, dtype)
            mask = np.arange(TOKENS) < 25
            mask = mask if place == "end" else rng.permutation(mask)
            case.arrays["logits"][~mask] = np.nan
            case.arrays["experts"][~mask] = 0
            yield route_case(
                f"{label}, padding of NaN, {place}", RULES[label], **case.arrays, mask=mask
            )
    mask = rng.random(LARGE_TOKENS) < 0.6
    mask[128:256] = False  # a whole tile of padding
    case = large(rng, dtype, once=True, mask=mask)
    case.arrays["logits"][~mask] = np.nan
    case.arrays["experts"][~mask] = 0
    yield case


def nothing(rng, dtype, budget):
    """Nothing but padding."""
    for label in ("softmax", "sigmoid"):
        for filler in (0, np.nan):
            logits = np.full((TOKENS, EXPERTS), filler).astype(dtype_of(dtype))
            mask = np.zeros(TOKENS, bool)
            yield drawn(rng, label, dtype, logits=logits, mask=mask)


def _empty(rng, dtype, budget):
    for label in ("softmax", "sigmoid"):
        experts = chosen(rng, TOKENS, RULES[label])
        experts[rng.random(experts.shape) < 0.3] = -1
        experts[:3] = -1
        yield drawn(rng, label, dtype, experts=experts)


def _counted(rng, dtype, budget):
    router = RULES["softmax"]
    ids = rng.integers(-1, EXPERTS, (TOKENS, K)).astype(np.int32)
    ids[0], ids[1], ids[2] = 3, -1, EXPERTS - 1
    yield drawn(rng, "softmax", dtype, experts=ids)
    yield drawn(rng, "softmax", dtype, experts=np.full_like(ids, EXPERTS - 1))
    mask = rng.permutation(np.arange(TOKENS) < 25)
    yield drawn(rng, "softmax", dtype, experts=chosen(rng, TOKENS, router), mask=mask)
    yield _hot(rng, dtype)
    case = large(rng, dtype)
    case.arrays["experts"][rng.random(case.arrays["experts"].shape) < 0.1] = -1
    yield case
    if budget == "thorough" and dtype == "float32":
        yield _beyond_float32(rng)


def _hot(rng, dtype):
    router = RouterSpec(num_experts=3, k=1)
    experts = np.repeat([0, 1, 2], [257, 643, 300])
    experts = rng.permutation(experts).astype(np.int32)[:, None]
    return route_case("hundreds of tokens", router, normal(rng, (_MANY, 3), dtype), experts=experts)


def _beyond_float32(rng):
    tokens = 2**24 + 3
    experts = np.zeros((tokens, 1), np.int32)
    logits = np.zeros((tokens, 1), np.float32)
    return route_case(
        "more than 2^24 tokens", RouterSpec(num_experts=1, k=1), logits, experts=experts
    )


def _steps(rng, dtype, budget):
    logits = normal(rng, (50, 10), dtype)
    for label, load in {
        "all at the mean": [10] * 10,
        "some at the mean": [10, 10, 9, 11, 10, 10, 4, 16, 10, 10],
        "a mean of 9.9": [10, 9, 10, 10, 10, 10, 10, 10, 10, 10],
        "a mean of 7 that some have": [7, 7, 0, 14, 7, 7, 7, 7, 7, 7],
        "all to one expert": [0, 0, 100, 0, 0, 0, 0, 0, 0, 0],
    }.items():
        slots = np.full(100, -1)
        slots[: sum(load)] = np.repeat(np.arange(10), load)
        experts = rng.permutation(slots).reshape(50, 2).astype(np.int32)
        yield route_case(label, _TEN, logits, experts=experts)
    yield _hot(rng, dtype)
    yield large(rng, dtype)


def _small(rng, dtype, budget):
    for offset in (-45, -60):
        logits = np.full((TOKENS, EXPERTS), offset).astype(dtype_of(dtype))
        yield drawn(rng, "sigmoid", dtype, logits=logits)
    logits = coarse(normal(rng, (TOKENS, EXPERTS), "float64", 2.0) - 50, dtype)
    yield drawn(rng, "sigmoid", dtype, logits=logits)
    yield drawn(rng, "sqrt_softplus", dtype, logits=logits)


def _large(rng, dtype, budget):
    far = 150 if dtype == "float16" else 1000  # the square of 1000 is no float16
    for label, offset in (("softmax", far), ("none", -far), ("sigmoid", 90)):
        logits = normal(rng, (TOKENS, EXPERTS), "float64", 20.0) + offset
        yield drawn(rng, label, dtype, logits=coarse(logits, dtype))


def _sizes(rng, dtype, budget):
    for experts, k, tokens in ((1, 1, 5), (4, 4, 5), (300, 11, 5), (8, 2, 1)):
        label = f"{counted(experts, 'expert')}, k={k}, {counted(tokens, 'token')}"
        router = RouterSpec(num_experts=experts, k=k)
        ids, logits = chosen(rng, tokens, router), normal(rng, (tokens, experts), dtype)
        yield route_case(label, router, logits, experts=ids)


def _no_tokens(rng, dtype, budget):
    logits, experts = normal(rng, (0, EXPERTS), dtype), np.zeros((0, K), np.int32)
    yield drawn(rng, "softmax", dtype, logits=logits, experts=experts)


CHECKS = (
    losses_check(1, "Balance and z loss follow the formula, for every score.", _rules),
    losses_check(2, "Equal use of equal experts costs 1, for k = 1, 2 and all experts.", _uniform),
    losses_check(3, "Padding enters neither loss, whatever it holds.", masked, may_refuse=True),
    losses_check(
        4,
        "Nothing but padding gives losses, load and step of 0.",
        nothing,
        judge_nothing,
        kind="exact",
        formula="0, not 0 / 0",
        may_refuse=True,
    ),
    losses_check(5, "An empty slot is no expert's, and its token still counts in T k.", _empty),
    losses_check(
        6,
        "The load counts every filled slot of a real token, however often an id repeats.",
        _counted,
        judge_load,
        kind="exact",
        formula="n_e = number of slots with id e",
        wants=("load",),
        may_refuse=True,
    ),
    losses_check(
        7,
        "The step is the sign of (mean load - load), and 0 exactly at the mean.",
        _steps,
        judge_step,
        kind="exact",
        formula="sign(sum n - E n_e)",
        wants=("step",),
    ),
    losses_check(8, "Small scores are shares of their own sum.", _small),
    losses_check(9, "Large logits overflow in neither loss.", _large),
    losses_check(10, "One expert, k = experts and one token are right.", _sizes),
    losses_check(
        11,
        "No tokens give losses, load and step of 0.",
        _no_tokens,
        judge_nothing,
        kind="exact",
        formula="0, not 0 / 0",
    ),
)
