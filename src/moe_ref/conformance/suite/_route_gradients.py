"""Checks of `route`: gradients."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.conformance.suite._data_route import (
    EVERY_RULE,
    GROUPED,
    LARGE_RULES,
    ODD,
    PLAIN,
    TOKENS,
    coarse,
    random_bias,
    route_case,
    set_one,
    spread,
    tokens_of,
    zero_bias,
)
from moe_ref.conformance.suite._route import masked
from moe_ref.conformance.suite._route_judge import (
    finite_rows,
    judge_both,
    judge_finite,
    judge_gradient,
    judge_logits_gradient,
    judge_route,
    route_check,
)
from moe_ref.spec import RouterSpec


def _cotangent(rng, router: RouterSpec, dtype: str) -> dict[str, np.ndarray]:
    return {"cotangent": normal(rng, (tokens_of(router), router.k), dtype)}


def _drawn(rng, label: str, dtype: str, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Random logits and a cotangent for the rule of that name."""
    router = EVERY_RULE[label]
    logits = normal(rng, (tokens_of(router), router.num_choices), dtype, scale)
    return {"logits": logits} | _cotangent(rng, router, dtype)


def rules(rng, dtype, budget):
    """Every rule, with a cotangent of the weights."""
    for label, router in EVERY_RULE.items():
        arrays = _drawn(rng, label, dtype, spread(router)) | random_bias(rng, router, dtype)
        yield route_case(label, router, once=label in LARGE_RULES, **arrays)


def _judge_rules(case: Case, outputs: Outputs) -> Judgement:
    """The gradient; of that of a p-norm, powers of scores declared bfloat16 leave nothing."""
    found = judge_gradient(case, outputs)
    narrow = case.numerics is not None and case.numerics.score == "bfloat16"
    lost = narrow and case.spec.router.renormalize == "p_norm"
    if found.status == "cannot tell" and lost:
        return Judgement(status="pass", ratio=found.ratio)
    return found


def _underflow(rng, dtype, budget):
    router = RouterSpec(num_experts=8, k=2, score="sigmoid", selection_bias=True, renormalize="sum")
    logits = np.full((2, 8), -1e4).astype(dtype_of(dtype))
    bias = np.array([1, 1, 0, 0, 0, 0, 0, 0]).astype(logits.dtype)
    cotangent = normal(rng, (2, 2), dtype)
    yield route_case("all chosen scores are 0", router, logits, bias=bias, cotangent=cotangent)


def _masked(rng, dtype, budget):
    for case in masked(rng, dtype, budget):
        yield case.replace(**_cotangent(rng, case.spec.router, dtype))


def _single(rng, dtype, budget):
    for experts, tokens in ((8, TOKENS), (300, 301)):
        router = RouterSpec(num_experts=experts, k=1, score="sigmoid", renormalize="sum")
        logits, cotangent = normal(rng, (tokens, experts), dtype), normal(rng, (tokens, 1), dtype)
        label = f"k=1 of {experts}, renormalised"
        yield route_case(label, router, logits, cotangent=cotangent, once=experts > 8)


def _judge_single(case: Case, outputs: Outputs) -> Judgement:
    """Where the right gradient is 0, zeros are no sign of deafness."""
    gradient = judge_logits_gradient(case, outputs)
    if gradient.status == "cannot tell":
        gradient = Judgement(status="pass", ratio=gradient.ratio)
    return all_of(judge_route(case, outputs), gradient)


def _switched_off(rng, dtype, budget):
    for label in (
        "softmax, renormalised",
        "softmax over the chosen",
        "sqrt-softplus, bias",
        "sigmoid, top-2 of groups of 4, large eps",
        *LARGE_RULES,
    ):
        router = EVERY_RULE[label]
        arrays = _drawn(rng, label, dtype) | zero_bias(router, dtype_of(dtype))
        shape = arrays["logits"].shape
        off = rng.permuted(np.tile(np.arange(shape[1]) % 8 < 3, (shape[0], 1)), axis=1)
        if router.score != "sqrt_softplus":  # whose slope is a limit where it is 0
            # Fewer experts than a token has slots are left, the first and the last of them.
            off[0], off[-1] = np.arange(shape[1]) > 0, np.arange(shape[1]) < shape[1] - 1
        arrays["logits"][off] = -np.inf
        label, once = f"{label}, some logits -inf", label in LARGE_RULES
        yield route_case(label, router, once=once, **arrays)


def _extreme(rng, dtype, budget):
    for label, scale, offset in (
        ("softmax, renormalised", 40, 0),
        ("softmax, renormalised", 2, 600),
        ("softmax over the chosen", 40, 0),
        ("softmax over the chosen", 2, -600),
        ("sigmoid, top-2 of groups of 4, large eps", 8, 0),
        ("sigmoid, bias, top-2 of groups", 1, -15),
        ("sigmoid, bias, top-2 of groups", 1, -46),
        ("sqrt-softplus, bias", 1, -15),
        ("sqrt-softplus, bias", 1, -60),
        ("sqrt-softplus, bias", 8, 100),
        (PLAIN, 40, 0),
        (GROUPED, 1, -46),
        (ODD, 40, 0),
    ):
        router = EVERY_RULE[label]
        shape = (tokens_of(router), router.num_choices)
        values = scale * normal(rng, shape, "float64") + offset
        more = _cotangent(rng, router, dtype) | random_bias(rng, router, dtype)
        once = label in LARGE_RULES
        label = f"{label}, {scale} * normal + {offset}"
        yield route_case(label, router, coarse(values, dtype), once=once, **more)
    yield from _one_large(rng, dtype, budget)


def _one_large(rng, dtype, budget):
    """One sigmoid of each token is 1, and its slope 0."""
    for label in ("sigmoid, top-2 of groups of 4, large eps", GROUPED):
        for large in (100.0, np.inf):
            router = EVERY_RULE[label]
            arrays = _drawn(rng, label, dtype) | zero_bias(router, dtype_of(dtype))
            set_one(rng, arrays["logits"], large)
            once = label in LARGE_RULES
            yield route_case(f"{label}, one logit of {large}", router, once=once, **arrays)


def _contained(rng, dtype, budget):
    for label in ("softmax, renormalised", "sigmoid, top-2 of groups of 4, large eps", PLAIN):
        router, once = EVERY_RULE[label], label in LARGE_RULES
        for name in ("logits", "cotangent"):
            for poison in (np.nan, np.inf):
                arrays = _drawn(rng, label, dtype)
                token = len(arrays["logits"]) - 33
                arrays[name][token] = poison
                said = f"{label}, {poison} in the {name} of token {token}"
                yield route_case(said, router, once=once, **arrays)


def _judge_contained(case: Case, outputs: Outputs) -> Judgement:
    return judge_logits_gradient(case, outputs, finite_rows(case, "logits", "cotangent"))


_GRADIENT: dict[str, Any] = {
    "kind": "gradient",
    "method": "vjp",
    "formula": "dlogits = (dw/dlogits)^T dw",
    "wants": ("grad.logits",),
}
CHECKS = (
    route_check(
        8,
        "Weights and gradients stay finite where every chosen score underflows.",
        _underflow,
        judge_finite,
        method="vjp",
        formula="w finite where sum(s[ids]) = 0",
        wants=("grad.logits",),
    ),
    route_check(
        10,
        "The gradient of the logits is right, and that of the selection bias zero.",
        rules,
        _judge_rules,
        **_GRADIENT,
    ),
    route_check(
        12,
        "The contents of padding tokens reach no gradient.",
        _masked,
        judge_gradient,
        **_GRADIENT | {"formula": "dlogits = (dw/dlogits)^T dw, 0 for padding"},
        may_refuse=True,
    ),
    route_check(
        17,
        "A single renormalised choice weighs 1 and passes no gradient.",
        _single,
        _judge_single,
        **_GRADIENT | {"formula": "w = s / s, dw/dlogits = 0"},
    ),
    route_check(
        18,
        "Experts switched off by a logit of -inf are right in value and gradient.",
        _switched_off,
        judge_both,
        **_GRADIENT,
    ),
    route_check(
        19,
        "The gradient is right where scores saturate or are small.",
        _extreme,
        judge_gradient,
        **_GRADIENT,
    ),
    route_check(
        20,
        "A NaN or Inf in one token's logits or cotangent reaches no other token's gradient.",
        _contained,
        _judge_contained,
        **_GRADIENT,
    ),
)
