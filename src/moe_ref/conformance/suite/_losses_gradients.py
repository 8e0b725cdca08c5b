"""Checks of `losses`: gradients."""

from typing import Any

import numpy as np

from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.conformance.suite._data_route import TOKENS, coarse
from moe_ref.conformance.suite._losses import EXPERTS, RULES, K, drawn, large, masked, nothing
from moe_ref.conformance.suite._losses_judge import judge_gradient, judge_still, losses_check

_ONE_EACH = (np.arange(TOKENS)[:, None] + np.arange(K)) % EXPERTS


def _cotangents(rng, dtype: str) -> dict[str, np.ndarray]:
    alone = {"balance": [1, 0], "z": [0, 1], "both": [1, -0.75]}
    return {name: np.array(c).astype(dtype_of(dtype)) for name, c in alone.items()}


def _each(rng, dtype, case):
    for cotangent in _cotangents(rng, dtype).values():
        yield case.replace(cotangent=cotangent)


def rules(rng, dtype, budget):
    """Every score, with cotangents of either loss and of both."""
    for label in RULES:
        yield from _each(rng, dtype, drawn(rng, label, dtype))
    yield from _each(rng, dtype, large(rng, dtype, once=True))


def _masked(rng, dtype, budget):
    for case in masked(rng, dtype, budget):
        yield from _each(rng, dtype, case)


def _nothing(rng, dtype, budget):
    for case in nothing(rng, dtype, budget):
        yield case.replace(cotangent=_cotangents(rng, dtype)["both"])


def _balanced(rng, dtype, budget):
    """Equal use: the balance loss has its least value, whatever the logits are."""
    for label in RULES:
        for scale in (0.0, 1.0):
            logits = normal(rng, (TOKENS, EXPERTS), dtype, scale)
            case = drawn(rng, label, dtype, logits=logits, experts=_ONE_EACH.astype(np.int32))
            yield from _each(rng, dtype, case)


def _extreme(rng, dtype, budget):
    for label, scale, offset in (
        ("softmax", 20, 1000),
        ("none", 20, -1000),
        ("sigmoid", 2, -50),
        ("sigmoid", 8, 0),
        ("sqrt_softplus", 2, -50),
    ):
        values = scale * normal(rng, (TOKENS, EXPERTS), "float64") + offset
        yield from _each(rng, dtype, drawn(rng, label, dtype, logits=coarse(values, dtype)))
    case = large(rng, dtype, once=True)
    case.arrays["logits"] = coarse(20 * case.arrays["logits"].astype(np.float64), dtype)
    yield from _each(rng, dtype, case)


def _switched_off(rng, dtype, budget):
    few = (drawn(rng, label, dtype) for label in ("softmax", "sigmoid"))
    for case in (*few, large(rng, dtype, once=True)):
        tokens, experts = case.arrays["logits"].shape
        off = rng.permuted(np.tile(np.arange(experts) % EXPERTS < 3, (tokens, 1)), axis=1)
        case.arrays["logits"][off] = -np.inf
        yield from _each(rng, dtype, case)


_GRADIENT: dict[str, Any] = {
    "kind": "gradient",
    "method": "vjp",
    "formula": "dlogits of c[0] balance + c[1] z, the load a constant",
    "wants": ("grad.logits",),
}
CHECKS = (
    losses_check(
        12,
        "The gradient of either loss is right, for every score.",
        rules,
        judge_gradient,
        **_GRADIENT,
    ),
    losses_check(
        13,
        "Padding gets no gradient, and what it holds reaches none.",
        _masked,
        judge_gradient,
        may_refuse=True,
        **_GRADIENT,
    ),
    losses_check(
        14,
        "Nothing but padding has a gradient of 0.",
        _nothing,
        judge_gradient,
        may_refuse=True,
        **_GRADIENT,
    ),
    losses_check(
        15,
        "At equal use of the experts the balance loss has a finite gradient of 0.",
        _balanced,
        judge_still,
        **_GRADIENT,
    ),
    losses_check(
        16,
        "The gradient is right where scores saturate, overflow or are small.",
        _extreme,
        judge_gradient,
        **_GRADIENT,
    ),
    losses_check(
        17,
        "Experts switched off by a logit of -inf get no gradient.",
        _switched_off,
        judge_gradient,
        **_GRADIENT,
    ),
)
