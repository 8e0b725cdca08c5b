"""Checks of `route`."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import integers, normal
from moe_ref.conformance.suite._data_route import GROUPS, RULES, SIGMOID
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec


def _layer(router: RouterSpec) -> LayerSpec:
    return LayerSpec(d_model=1, router=router, experts=ExpertSpec(d_hidden=1))


def _case(label: str, router: RouterSpec, logits, **arrays) -> Case:
    return Case(label=label, spec=_layer(router), arrays={"logits": logits} | arrays)


def _truth(case: Case, experts=None):
    assert case.spec is not None
    arrays = case.arrays
    return oracle.route(
        arrays["logits"],
        case.spec.router,
        bias=arrays.get("bias"),
        mask=arrays.get("mask"),
        experts=experts,
        numerics=case.numerics,
    )


def _token(place: tuple[int, ...]) -> str:
    return f"token {place[0]}, slot {place[1]}"


def _judge(case: Case, outputs: Outputs) -> Judgement:
    """The chosen sets up to ambiguity, then the weights under the kernel's own choice."""
    experts = outputs["experts"]
    truth = _truth(case)
    if experts.shape != truth.experts.shape:
        detail = f"experts of shape {experts.shape}, expected {truth.experts.shape}"
        return Judgement(status="fail", detail=detail)
    acceptable = np.asarray(oracle.acceptable(truth, experts))
    if not acceptable.all():
        token = int(np.argmin(acceptable))
        got, want = experts[token].tolist(), truth.experts[token].tolist()
        return Judgement(status="fail", detail=f"token {token}: experts {got}, expected {want}")
    return _judge_weights(case, outputs)


def _judge_weights(case: Case, outputs: Outputs) -> Judgement:
    truth = _truth(case, experts=outputs["experts"])
    weights = truth.weights
    return within(outputs["weights"], weights, where=_token)


def _judge_ties(case: Case, outputs: Outputs) -> Judgement:
    """Exact ties: the same ids as the oracle's, in any order of the slots."""
    chosen = _same_sets(outputs["experts"], _truth(case).experts)
    return chosen if chosen.status == "fail" else _judge_weights(case, outputs)


def _same_sets(experts: np.ndarray, expected: np.ndarray) -> Judgement:
    return equal(
        np.sort(experts, axis=1), np.sort(expected, axis=1), where=lambda place: f"token {place[0]}"
    )


def _judge_valid(case: Case, outputs: Outputs) -> Judgement:
    """Whatever the logits hold, ids are distinct and in range; finite rows are as ever."""
    experts = outputs["experts"]
    choices = case.arrays["logits"].shape[1]
    for token, ids in enumerate(experts.tolist()):
        if len(set(ids)) < len(ids) or min(ids) < 0 or max(ids) >= choices:
            return Judgement(status="fail", detail=f"token {token}: experts {ids}")
    finite = np.isfinite(case.arrays["logits"].astype(np.float64)).all(axis=1)
    truth = _truth(case)
    chosen = _same_sets(experts[finite], truth.experts[finite])
    truth = _truth(case, experts=experts)
    weights = within(outputs["weights"], truth.weights, where=_token, rows=finite)
    return all_of(chosen, weights)


def _judge_finite(case: Case, outputs: Outputs) -> Judgement:
    bad = ~np.isfinite(outputs["weights"].astype(np.float64))
    for name, gradient in outputs.items():
        if name.startswith("grad.logits"):
            bad_gradient = ~np.isfinite(gradient.astype(np.float64))
            if bad_gradient.any():
                return Judgement(status="fail", detail="the gradient is not finite")
    if bad.any():
        return Judgement(status="fail", detail=f"weights {outputs['weights'][bad.any(axis=1)][0]}")
    return Judgement(status="pass")


def _judge_gradient(case: Case, outputs: Outputs) -> Judgement:
    assert case.spec is not None
    arrays = case.arrays
    gradient = oracle.route_vjp(
        arrays["logits"],
        case.spec.router,
        arrays["cotangent"],
        bias=arrays.get("bias"),
        mask=arrays.get("mask"),
        experts=outputs["experts"],
        numerics=case.numerics,
    )
    judgement = within(outputs["grad.logits"], gradient, where=_token)
    if "bias" not in arrays:
        return judgement
    zero = np.zeros_like(outputs["grad.bias"])
    none = equal(outputs["grad.bias"], zero, where=lambda place: f"gradient of bias {place[0]}")
    return all_of(judgement, none)


def _bias(rng, router: RouterSpec, dtype: str) -> dict:
    return {"bias": normal(rng, (router.num_choices,), dtype, 0.1)} if router.selection_bias else {}


def _rules(rng, dtype, budget):
    for label, router in RULES.items():
        logits = normal(rng, (100 if budget == "smoke" else 600, router.num_choices), dtype, 2.0)
        yield _case(label, router, logits, **_bias(rng, router, dtype))


def _large_logits(rng, dtype, budget):
    for label in ("softmax, renormalised", "softmax over the chosen", "softmax, ten choices"):
        router = RULES[label]
        logits = normal(rng, (40, router.num_choices), dtype, 40.0)
        yield _case(f"{label}, logits of size 40", router, logits)
    # Saturated sigmoids tie; their logits do not.
    router = RouterSpec(num_experts=8, k=2, score="sigmoid", choose_by="logit")
    levels = np.stack([rng.permutation(8) for _ in range(40)])
    logits = (40 + 4 * levels).astype(normal(rng, (1,), dtype).dtype)
    yield _case("saturated sigmoids, chosen by logit", router, logits)


def _ties(rng, dtype, budget):
    for label, router in RULES.items():
        shape = (40, router.num_choices)
        yield _case(f"{label}, all equal", router, np.zeros_like(normal(rng, shape, dtype)))
        if router.num_groups == 1:
            yield _case(f"{label}, few values", router, integers(rng, shape, dtype))


def _negative(rng, dtype, budget):
    logits = np.array([[2, 1, 0, -1, -2, -3, -2.5, -3.5]]).astype(normal(rng, (1,), dtype).dtype)
    bias = -np.ones(8, logits.dtype)
    yield _case("all choice scores negative", GROUPS, logits, bias=bias)


def _steering(rng, dtype, budget):
    router = dataclasses.replace(SIGMOID, k=2, num_experts=4)
    zero = np.zeros_like(normal(rng, (3, 4), dtype))
    bias = np.array([10, 5, 0, 0]).astype(zero.dtype)
    for rule in ("none", "sum"):
        spec = dataclasses.replace(router, renormalize=rule)
        yield _case(f"large bias, renormalize {rule}", spec, zero, bias=bias)


def _bad_rows(rng, dtype, budget):
    for router in (RULES["softmax"], dataclasses.replace(SIGMOID, selection_bias=False)):
        logits = normal(rng, (4, 8), dtype)
        logits[0], logits[1], logits[2, 5] = np.nan, -np.inf, np.nan
        yield _case("rows of NaN, of -inf, with one NaN", router, logits)


def _masked(rng, dtype, budget):
    for label in ("softmax, renormalised", "sigmoid, bias, top-2 of groups"):
        router = RULES[label]
        logits = normal(rng, (12, router.num_choices), dtype)
        mask = rng.random(12) < 0.5
        logits[~mask] = np.nan
        yield _case(f"{label}, padding of NaN", router, logits, mask=mask)
        yield _case(f"{label}, nothing but padding", router, logits, mask=np.zeros_like(mask))


def _masked_gradients(rng, dtype, budget):
    for case in _masked(rng, dtype, budget):
        shape = (len(case.arrays["logits"]), case.spec.router.k)
        yield case.replace(cotangent=normal(rng, shape, dtype))


def _grid(rng, dtype, budget):
    for rule in ("none", "sum"):
        for scale in (1.0, 2.5):
            router = RouterSpec(num_experts=4, k=2, renormalize=rule, scale=scale)
            yield _case(f"renormalize {rule}, scale {scale}", router, normal(rng, (16, 4), dtype))


def _underflow(rng, dtype, budget):
    router = RouterSpec(num_experts=8, k=2, score="sigmoid", selection_bias=True, renormalize="sum")
    logits = np.full_like(normal(rng, (2, 8), dtype), -1e4)
    bias = np.array([1, 1, 0, 0, 0, 0, 0, 0]).astype(logits.dtype)
    cotangent = normal(rng, (2, 2), dtype)
    yield _case("all chosen scores are 0", router, logits, bias=bias, cotangent=cotangent)


def _sizes(rng, dtype, budget):
    for experts, k, tokens in ((1, 1, 5), (4, 4, 5), (300, 8, 5), (8, 2, 1)):
        router = RouterSpec(num_experts=experts, k=k, renormalize="sum")
        logits = normal(rng, (tokens, experts), dtype)
        yield _case(f"{experts} experts, k={k}, {tokens} tokens", router, logits)
    empty = normal(rng, (0, 4), dtype)
    yield _case("no tokens", RouterSpec(num_experts=4, k=2), empty)


def _gradients(rng, dtype, budget):
    for label, router in RULES.items():
        logits = normal(rng, (24, router.num_choices), dtype)
        cotangent = normal(rng, (24, router.k), dtype)
        yield _case(label, router, logits, cotangent=cotangent, **_bias(rng, router, dtype))


def _check(number: int, statement: str, cases, judge=_judge, **options: Any) -> Check:
    fields: dict[str, Any] = {
        "kind": "rounding",
        "formula": "top_k(s + b); w = scale * renormalize(s[ids])",
    } | options
    return Check(
        id=f"RTE-{number:02d}", op="route", statement=statement, cases=cases, judge=judge, **fields
    )


CHECKS = (
    _check(1, "Choice and weights follow the rule, for eleven rules.", _rules),
    _check(
        2,
        "Ties go to the lower index, of experts and of groups.",
        _ties,
        _judge_ties,
        kind="exact",
        formula="score descending, then index ascending",
    ),
    _check(3, "Rejected groups lose to every kept one, also where scores are negative.", _negative),
    _check(4, "The selection bias reaches no weight.", _steering),
    _check(
        5,
        "Rows of NaN or -inf give distinct ids in range, and disturb no other row.",
        _bad_rows,
        _judge_valid,
        kind="exact",
        formula="0 <= id < experts, ids distinct",
    ),
    _check(
        6, "Padding tokens get id -1 and weight 0, whatever they hold.", _masked, may_refuse=True
    ),
    _check(7, "Scale and renormalisation are independent of each other.", _grid),
    _check(
        8,
        "Weights and gradients stay finite where every chosen score underflows.",
        _underflow,
        _judge_finite,
        method="vjp",
        formula="w finite where sum(s[ids]) = 0",
    ),
    _check(9, "One expert, k = experts, one token and no tokens are right.", _sizes),
    _check(
        10,
        "The gradient of the logits is right, and that of the selection bias zero.",
        _gradients,
        _judge_gradient,
        kind="gradient",
        method="vjp",
        formula="dlogits = (dw/dlogits)^T dw",
    ),
    _check(11, "Large and saturated logits are weighed and chosen right.", _large_logits),
    _check(
        12,
        "The contents of padding tokens reach no gradient.",
        _masked_gradients,
        _judge_gradient,
        kind="gradient",
        method="vjp",
        formula="dlogits = (dw/dlogits)^T dw, 0 for padding",
        may_refuse=True,
    ),
)
