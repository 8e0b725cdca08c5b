"""Routing rules and logits for the checks of `route`."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec

TOKENS = 40  # of nearly every input, so that little is compiled; no whole number of tiles
LARGE_TOKENS = 301  # of large rules: the last tile is not full, whether it has 2, 64 or 256 tokens
SIGMOID = RouterSpec(num_experts=8, k=3, score="sigmoid", selection_bias=True)
GROUPS = dataclasses.replace(
    SIGMOID, num_groups=4, groups_kept=2, group_score="sum_top", renormalize="sum"
)
RULES = {
    "softmax, renormalised": RouterSpec(num_experts=8, k=2, renormalize="sum"),
    "softmax": RouterSpec(num_experts=8, k=2),
    "softmax over the chosen": RouterSpec(num_experts=8, k=2, score="softmax_selected"),
    "softmax, max of groups, scaled": RouterSpec(
        num_experts=12, k=3, num_groups=4, groups_kept=2, group_score="max", scale=1.7
    ),
    "sigmoid, bias, top-2 of groups": dataclasses.replace(GROUPS, renormalize_eps=1e-20, scale=2.5),
    "sqrt-softplus, bias": RouterSpec(
        num_experts=8, k=3, score="sqrt_softplus", selection_bias=True, renormalize="sum"
    ),
    "softmax, p-norm": RouterSpec(num_experts=8, k=3, renormalize="p_norm", renormalize_p=3.0),
    "softmax, bias, clamped": RouterSpec(
        num_experts=8, k=3, selection_bias=True, renormalize="clamp", renormalize_eps=0.6
    ),
    "sigmoid, top-2 of groups of 4, large eps": RouterSpec(
        num_experts=16,
        k=3,
        score="sigmoid",
        num_groups=4,
        groups_kept=2,
        group_score="sum_top",
        group_top=2,
        renormalize="sum",
        renormalize_eps=0.3,
    ),
    "sigmoid, one choice is left alone": RouterSpec(
        num_experts=8, k=1, score="sigmoid", renormalize="sum", renormalize_only_above_one=True
    ),
    "softmax, ten choices": RouterSpec(num_experts=24, k=10, renormalize="sum", scale=1.5),
}
# Sizes of released models, DeepSeek-V3's and Qwen3-Next's; and odd ones, with about as many choices
# as Nemotron 3 Super makes.
GROUPED, PLAIN, ODD = "eight of 256, four of eight groups", "ten of 512", "23 of 300, wide groups"
LARGE_RULES = {
    GROUPED: dataclasses.replace(
        GROUPS, num_experts=256, k=8, num_groups=8, groups_kept=4, scale=2.5
    ),
    PLAIN: RouterSpec(num_experts=512, k=10, renormalize="sum"),
    ODD: RouterSpec(
        num_experts=300,
        k=23,
        score="softmax_selected",
        num_groups=4,
        groups_kept=2,
        group_score="max",
    ),
}
EVERY_RULE = RULES | LARGE_RULES
# What no rule above has.
OTHER_RULES = {
    "logits as scores, zero experts, scaled output": RouterSpec(
        num_experts=6, zero_experts=2, k=2, score="none", scale=2.5, scale_site="output"
    ),
    "sigmoid, chosen by logit": RouterSpec(num_experts=8, k=2, score="sigmoid", choose_by="logit"),
    "sigmoid, chosen by logit and bias": RouterSpec(
        num_experts=8, k=2, score="sigmoid", choose_by="logit", selection_bias=True
    ),
}
# Rules that compare logits, which zeros of both signs are told apart in.
SIGNED_RULES = {
    "softmax over the chosen": RULES["softmax over the chosen"],
    "sigmoid, chosen by logit and bias": OTHER_RULES["sigmoid, chosen by logit and bias"],
    "sigmoid, chosen by logit, max of groups": RouterSpec(
        num_experts=8,
        k=2,
        score="sigmoid",
        choose_by="logit",
        num_groups=4,
        groups_kept=2,
        group_score="max",
    ),
    ODD: LARGE_RULES[ODD],
}
# Powers of small scores would be lost in narrow ones: logits of a p-norm lie close together.
_CLOSE = 0.125
UNBIASED = dataclasses.replace(SIGMOID, selection_bias=False)


def route_case(
    label: str, router: RouterSpec, logits: np.ndarray, *, once: bool = False, **arrays: Any
) -> Case:
    """An input of `route`, or of `losses`."""
    spec = LayerSpec(d_model=1, router=router, experts=ExpertSpec(d_hidden=1))
    return Case(label=label, spec=spec, arrays={"logits": logits} | arrays, once=once)


def tokens_of(router: RouterSpec) -> int:
    """How many tokens a rule is tried on: more than any tile has where it is large."""
    return LARGE_TOKENS if router in LARGE_RULES.values() else TOKENS


def random_bias(rng: np.random.Generator, router: RouterSpec, dtype: str) -> dict[str, Any]:
    """A selection bias, where the rule has one."""
    return {"bias": normal(rng, (router.num_choices,), dtype, 0.1)} if router.selection_bias else {}


def zero_bias(router: RouterSpec, dtype: np.dtype) -> dict[str, Any]:
    """A selection bias of zeros, where the rule has one."""
    return {"bias": np.zeros(router.num_choices, dtype)} if router.selection_bias else {}


def spread(router: RouterSpec) -> float:
    """What logits of a rule are multiplied with, so that scores declared narrow are heard too."""
    return _CLOSE if router.renormalize == "p_norm" else 1.0


def coarse(values: np.ndarray, dtype: str) -> np.ndarray:
    """Logits that bfloat16 holds too: of large ones, a kernel with narrow scores loses nothing."""
    return values.astype(dtype_of("bfloat16")).astype(dtype_of(dtype))


def clear_logits(
    rng: np.random.Generator,
    router: RouterSpec,
    dtype: str,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Logits whose choice neither rounding nor a tie decides, so that any router makes it."""
    shape = (TOKENS, router.num_choices)
    scale = 1.5 * spread(router)
    logits = normal(rng, shape, dtype, scale)
    for _ in range(100):
        levels = np.sort(logits.astype(np.float64), axis=1)
        tied = (np.diff(levels, axis=1) == 0).any(axis=1)
        unsure = tied | oracle.route(logits, router, bias=bias).ambiguous
        if not unsure.any():
            break
        logits = np.where(unsure[:, None], normal(rng, shape, dtype, scale), logits)
    return logits


def set_one(rng: np.random.Generator, logits: np.ndarray, value: float) -> None:
    """Write a value over one logit of each token."""
    tokens, choices = logits.shape
    logits[np.arange(tokens), rng.integers(0, choices, tokens)] = value
