"""Checks of `route`: laws between several calls."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.conformance.suite._data_route import (
    EVERY_RULE,
    PLAIN,
    RULES,
    TOKENS,
    clear_logits,
    random_bias,
    route_case,
    tokens_of,
)
from moe_ref.conformance.suite._route_judge import route_check, truth

_SOME = (
    "softmax, renormalised",
    "softmax over the chosen",
    "softmax, max of groups, scaled",
    "sigmoid, bias, top-2 of groups",
)
_SHIFT = 8


@dataclasses.dataclass(frozen=True)
class Moved:
    """An input that follows from another, and where its results come from.

    Attributes:
        case: the input.
        tokens: token i of it is token `tokens[i]` of the other.
        experts: expert e of the other is expert `experts[e]` of it.
    """

    case: Case
    tokens: np.ndarray
    experts: np.ndarray


Moves = Callable[[Case], Mapping[str, Moved]]


def _taken(case: Case, tokens: np.ndarray) -> Moved:
    """Some of the tokens, in some order."""
    logits = case.arrays["logits"]
    return Moved(case.replace(logits=logits[tokens]), tokens, np.arange(logits.shape[1]))


def _shuffled(case: Case) -> Mapping[str, Moved]:
    order = np.random.default_rng(0).permutation(len(case.arrays["logits"]))
    return {"shuffled": _taken(case, order)}


def _halves(case: Case) -> Mapping[str, Moved]:
    first, second = np.array_split(np.arange(len(case.arrays["logits"])), 2)
    return {"first": _taken(case, first), "second": _taken(case, second)}


def _twice(case: Case) -> Mapping[str, Moved]:
    half = np.arange(len(case.arrays["logits"]) // 2)
    return {"twice": _taken(case, np.concatenate([half, half]))}


def _relabelled(case: Case) -> Mapping[str, Moved]:
    """Groups in another order, and the experts within each group too."""
    router, rng = case.spec.router, np.random.default_rng(0)
    table = np.arange(router.num_choices).reshape(router.num_groups, -1)
    table = rng.permuted(rng.permutation(table), axis=1).reshape(-1)
    moved = {n: case.arrays[n][..., table] for n in ("logits", "bias") if case.has(n)}
    tokens = np.arange(len(moved["logits"]))
    return {"relabelled": Moved(case.replace(**moved), tokens, np.argsort(table))}


def _offset(case: Case) -> Mapping[str, Moved]:
    logits = case.arrays["logits"]
    tokens, choices = logits.shape
    up = case.replace(logits=logits + logits.dtype.type(_SHIFT))
    down = case.replace(logits=logits - logits.dtype.type(_SHIFT))
    same = np.arange(tokens), np.arange(choices)
    return {"up": Moved(up, *same), "down": Moved(down, *same)}


def _one_more(case: Case) -> Mapping[str, Moved]:
    logits, router = case.arrays["logits"], case.spec.router
    tokens, choices = logits.shape
    low = np.full((tokens, 1), -1e4).astype(logits.dtype)
    wider = dataclasses.replace(router, num_experts=router.num_experts + 1)
    more: dict[str, Any] = (
        {"bias": np.append(case.arrays["bias"], low[0])} if case.has("bias") else {}
    )
    longer = route_case(case.label, wider, np.concatenate([logits, low], axis=1), **more)
    longer = dataclasses.replace(longer, numerics=case.numerics)
    return {"longer": Moved(longer, np.arange(tokens), np.arange(choices))}


def _law(number: int, statement: str, formula: str, cases: Any, moves: Moves) -> Check:
    def judge(case: Case, outputs: Outputs) -> Judgement:
        sure = ~truth(case).ambiguous
        if len(sure) and not sure.any():
            return Judgement(status="cannot tell", detail="rounding decides every choice")
        mine = _by_expert(case, outputs["experts"], outputs["weights"])
        return all_of(*(_judge(mine, sure, outputs, n, m) for n, m in moves(case).items()))

    return route_check(
        number,
        statement,
        cases,
        judge,
        kind="metamorphic",
        formula=formula,
        related=lambda case: {name: moved.case for name, moved in moves(case).items()},
    )


def _judge(
    mine: oracle.Value, sure: np.ndarray, outputs: Outputs, name: str, moved: Moved
) -> Judgement:
    """The weight of every expert, 0 if it was not chosen, within both bounds."""
    ids, weights = outputs[f"{name}.experts"], outputs[f"{name}.weights"]
    mine = mine[moved.tokens]
    other = _by_expert(moved.case, ids, weights)[:, moved.experts]
    bound, worst = mine.bound + other.bound, mine.worst + other.worst
    nothing = np.zeros_like(bound)
    expected = oracle.Value(mine.value, bound, worst, bound, nothing, nothing)

    def where(place):
        return f"{name}: token {place[0]}, expert {place[1]}"

    return within(other.value, expected, where=where, rows=sure[moved.tokens])


def _by_expert(case: Case, experts: np.ndarray, weights: np.ndarray) -> oracle.Value:
    """A kernel's weights by expert, with their bounds."""
    bounds = truth(case, experts=experts).weights
    token, slot = np.nonzero(experts >= 0)

    def spread(of_slots):
        whole = np.zeros(case.arrays["logits"].shape)
        np.add.at(whole, (token, experts[token, slot]), of_slots[token, slot])
        return whole

    return dataclasses.replace(bounds.map(spread), value=spread(weights.astype(np.float64)))


def _clear(rng, dtype, budget):
    for label in _SOME if budget == "smoke" else RULES:
        router = RULES[label]
        bias = random_bias(rng, router, dtype)
        yield route_case(label, router, clear_logits(rng, router, dtype, **bias), **bias)


def _clear_softmax(rng, dtype, budget):
    for label in ("softmax, renormalised", "softmax", "softmax over the chosen"):
        router = RULES[label]
        # Sixteenths below 4: sums with 8 are exact in every dtype, and so are differences.
        levels = [rng.permutation(64)[: router.num_choices] for _ in range(TOKENS)]
        logits = ((np.stack(levels) - 32) / 16).astype(dtype_of(dtype))
        yield route_case(label, router, logits)


def _clear_ungrouped(rng, dtype, budget):
    for label in ("softmax", "softmax over the chosen", "sqrt-softplus, bias"):
        router = RULES[label]
        bias = random_bias(rng, router, dtype)
        yield route_case(label, router, clear_logits(rng, router, dtype, **bias), **bias)


def _many_experts(rng, dtype, budget):
    for label in ("softmax, ten choices", "softmax, p-norm", PLAIN):
        router = EVERY_RULE[label]
        logits = normal(rng, (tokens_of(router), router.num_choices), dtype, 2.0)
        yield route_case(label, router, logits, once=label == PLAIN)


def _others(case: Case) -> Mapping[str, Moved]:
    tokens = np.arange(len(case.arrays["logits"]))
    return {"alone": _taken(case, tokens[:1]), "few": _taken(case, tokens[:3]), **_shuffled(case)}


def _judge_others(case: Case, outputs: Outputs) -> Judgement:
    found = [
        _identical(outputs, name, moved.tokens, f"{name}: ")
        for name, moved in _others(case).items()
    ]
    return all_of(*found)


def _again(case: Case) -> dict[str, Case]:
    return {"again": case, "once more": case, "and again": case}


def _judge_again(case: Case, outputs: Outputs) -> Judgement:
    everything = np.arange(len(outputs["experts"]))
    return all_of(*(_identical(outputs, name, everything, "") for name in _again(case)))


def _identical(outputs: Outputs, name: str, tokens: np.ndarray, said: str) -> Judgement:
    def where(place):
        return f"{said}token {place[0]}, slot {place[1]}"

    pairs = [(f"{name}.{result}", outputs[result][tokens]) for result in ("experts", "weights")]
    return all_of(*(equal(outputs[mine], theirs, where=where) for mine, theirs in pairs))


CHECKS = (
    _law(
        21,
        "Tokens in another order get the same experts and weights.",
        "route(l[order]) = route(l)[order]",
        _clear,
        _shuffled,
    ),
    _law(
        22,
        "Experts under other names, groups kept together, get the same tokens and weights.",
        "route(l[:, names]) = names[route(l)]",
        _clear,
        _relabelled,
    ),
    _law(
        23,
        "A batch in two halves is routed as the whole.",
        "route(l) = [route(l[:n]), route(l[n:])]",
        _clear,
        _halves,
    ),
    _law(
        24,
        "A token that comes twice is routed the same way twice.",
        "route([l, l]) = [route(l), route(l)]",
        _clear,
        _twice,
    ),
    _law(
        25,
        "A constant added to all logits changes no softmax.",
        "route(l + c) = route(l)",
        _clear_softmax,
        _offset,
    ),
    _law(
        26,
        "One more expert with a very low logit changes nothing.",
        "route([l, -10000]) = route(l)",
        _clear_ungrouped,
        _one_more,
    ),
    route_check(
        27,
        "A token's bits do not depend on the other tokens.",
        _many_experts,
        _judge_others,
        kind="metamorphic",
        formula="route(l[tokens]) = route(l)[tokens], bit by bit",
        related=lambda case: {name: moved.case for name, moved in _others(case).items()},
        needs="batch_invariant",
    ),
    route_check(
        28,
        "The same input gives the same bits every time.",
        _many_experts,
        _judge_again,
        kind="metamorphic",
        formula="route(l) = route(l), bit by bit",
        related=_again,
        needs="deterministic",
    ),
)
