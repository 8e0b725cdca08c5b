"""Checks of `losses`: laws between several calls."""

from collections.abc import Mapping

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._judge import all_of, equal, failed, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._data_route import TOKENS
from moe_ref.conformance.suite._losses import EXPERTS, RULES, chosen, drawn, large
from moe_ref.conformance.suite._losses_judge import NAMES, judge_step, losses_check, truth

_SHIFT = 8


def _taken(case: Case, tokens: np.ndarray) -> Case:
    return case.replace(**{n: case.arrays[n][tokens] for n in ("logits", "experts")})


def _agree(actual: np.ndarray, expected: np.ndarray, *bounds: oracle.Value) -> Judgement:
    """Two results, or functions of them, within the sum of their bounds."""
    bound = np.sum([b.bound for b in bounds], axis=0)
    worst = np.sum([b.worst for b in bounds], axis=0)
    value = np.asarray(expected, np.float64)
    nothing = np.zeros(value.shape)
    known = oracle.Value(value, bound, worst, bound, nothing, nothing)
    return within(np.asarray(actual, np.float64), known, where=lambda place: NAMES[place[0]])


def _same_counts(mine: Outputs, name: str, experts: np.ndarray) -> list[Judgement]:
    """Load and step under other names of the experts, where they are reported."""
    return [
        equal(
            mine[f"{name}.{result}"],
            mine[result][experts],
            where=lambda place, result=result: f"{result} of expert {place[0]}",
        )
        for result in ("load", "step")
        if result in mine
    ]


def _shuffled(case: Case) -> Mapping[str, Case]:
    order = np.random.default_rng(0).permutation(len(case.arrays["logits"]))
    return {"shuffled": _taken(case, order)}


def _judge_shuffled(case: Case, outputs: Outputs) -> Judgement:
    bounds = truth(case).losses
    same = _agree(outputs["shuffled.losses"], outputs["losses"], bounds, bounds)
    everyone = np.arange(case.arrays["logits"].shape[1])
    return all_of(same, *_same_counts(outputs, "shuffled", everyone))


def _names(case: Case) -> np.ndarray:
    return np.random.default_rng(0).permutation(case.spec.router.num_choices)


def _relabelled(case: Case) -> Mapping[str, Case]:
    table = _names(case)
    ids, logits = case.arrays["experts"], case.arrays["logits"][:, table]
    places = np.append(np.argsort(table), -1).astype(ids.dtype)  # -1 stays -1
    return {"relabelled": case.replace(logits=logits, experts=places[ids])}


def _judge_relabelled(case: Case, outputs: Outputs) -> Judgement:
    bounds = truth(case).losses
    same = _agree(outputs["relabelled.losses"], outputs["losses"], bounds, bounds)
    return all_of(same, *_same_counts(outputs, "relabelled", _names(case)))


def _halves(case: Case) -> Mapping[str, Case]:
    parts = np.array_split(np.arange(len(case.arrays["logits"])), 2)
    return {name: _taken(case, part) for name, part in zip(("first", "second"), parts, strict=True)}


def _judge_halves(case: Case, outputs: Outputs) -> Judgement:
    """The z loss is the mean, the load the sum, and the step that of the sum."""
    tokens = len(case.arrays["logits"])
    halves = _halves(case)
    share = {n: len(half.arrays["logits"]) / max(tokens, 1) for n, half in halves.items()}
    bounds = [truth(half).losses[1:] for half in halves.values()]
    mean = sum(np.asarray(outputs[f"{n}.losses"], np.float64)[1:] * share[n] for n in halves)
    same = _agree(outputs["losses"][1:], np.asarray(mean), truth(case).losses[1:], *bounds)
    if same.status == "fail":
        return failed(f"z loss of the whole and of its halves: {same.detail}", ratio=same.ratio)
    found = [same]
    if "load" in outputs:
        total = outputs["first.load"] + outputs["second.load"]
        found.append(
            equal(outputs["load"], total, where=lambda place: f"load of expert {place[0]}")
        )
    if "step" in outputs:
        found.append(judge_step(case, outputs))
    return all_of(*found)


def _offset(case: Case) -> Mapping[str, Case]:
    logits = case.arrays["logits"]
    shift = logits.dtype.type(_SHIFT)
    return {"up": case.replace(logits=logits + shift), "down": case.replace(logits=logits - shift)}


def _judge_offset(case: Case, outputs: Outputs) -> Judgement:
    mine = truth(case).losses[:1]
    return all_of(
        *(
            _agree(outputs[f"{n}.losses"][:1], outputs["losses"][:1], mine, truth(c).losses[:1])
            for n, c in _offset(case).items()
        )
    )


def _padded(case: Case) -> Mapping[str, Case]:
    """The same tokens with as many of padding among them."""
    tokens = len(case.arrays["logits"])
    place = np.sort(np.random.default_rng(0).permutation(2 * tokens)[:tokens])
    mask = np.zeros(2 * tokens, bool)
    mask[place] = True
    logits = np.full((2 * tokens, case.arrays["logits"].shape[1]), np.nan)
    experts = np.zeros((2 * tokens, case.arrays["experts"].shape[1]), np.int32)
    logits[place], experts[place] = case.arrays["logits"], case.arrays["experts"]
    logits = logits.astype(case.arrays["logits"].dtype)
    return {"padded": case.replace(logits=logits, experts=experts, mask=mask)}


def _judge_padded(case: Case, outputs: Outputs) -> Judgement:
    bounds = truth(case).losses
    same = _agree(outputs["padded.losses"], outputs["losses"], bounds, bounds)
    everyone = np.arange(case.arrays["logits"].shape[1])
    return all_of(same, *_same_counts(outputs, "padded", everyone))


def _again(case: Case) -> dict[str, Case]:
    return {"again": case, "once more": case, "and again": case}


def _judge_again(case: Case, outputs: Outputs) -> Judgement:
    own = [name for name in ("losses", "load", "step") if name in outputs]
    return all_of(
        *(
            equal(outputs[f"{again}.{name}"], outputs[name], where=lambda p, n=name: f"{n} {p[0]}")
            for again in _again(case)
            for name in own
        )
    )


def _some(rng, dtype, budget):
    for label in ("softmax", "sigmoid") if budget == "smoke" else RULES:
        yield drawn(rng, label, dtype)


def _some_and_large(rng, dtype, budget):
    yield from _some(rng, dtype, budget)
    yield large(rng, dtype, once=True)


def _half_as_many(rng, dtype, budget):
    for label in ("softmax", "sigmoid"):
        case = drawn(rng, label, dtype)
        yield _taken(case, np.arange(TOKENS // 2))


def _sixteenths(rng, dtype, budget):
    # Below 4 their sums with 8 are exact in every dtype, and so are differences.
    for label in ("softmax", "softmax_selected", "none"):
        logits = rng.integers(-64, 64, (TOKENS, EXPERTS)) / 16
        experts = chosen(rng, TOKENS, RULES[label])
        yield drawn(rng, label, dtype, logits=logits.astype(dtype_of(dtype)), experts=experts)


CHECKS = (
    losses_check(
        18,
        "The order of the tokens does not matter.",
        _some_and_large,
        _judge_shuffled,
        kind="metamorphic",
        formula="losses(l[order]) = losses(l)",
        related=_shuffled,
    ),
    losses_check(
        19,
        "The names of the experts do not matter, and load and step follow them.",
        _some_and_large,
        _judge_relabelled,
        kind="metamorphic",
        formula="losses(l[:, names]) = losses(l)",
        related=_relabelled,
    ),
    losses_check(
        20,
        "The z loss is the mean of two halves, the load the sum, the step that of the sum.",
        _some,
        _judge_halves,
        kind="metamorphic",
        formula="n = n' + n'', step = sign(mean n - n), not the mean of two signs",
        related=_halves,
    ),
    losses_check(
        21,
        "A constant added to all logits changes no balance loss of a softmax.",
        _sixteenths,
        _judge_offset,
        kind="metamorphic",
        formula="balance(l + c) = balance(l)",
        related=_offset,
    ),
    losses_check(
        22,
        "Padding put among the tokens changes nothing.",
        _half_as_many,
        _judge_padded,
        kind="metamorphic",
        formula="losses(padded, mask) = losses(l)",
        related=_padded,
        needs="masks",
    ),
    losses_check(
        23,
        "The same input gives the same bits every time.",
        _some_and_large,
        _judge_again,
        kind="metamorphic",
        formula="losses(l) = losses(l), bit by bit",
        related=_again,
        needs="deterministic",
    ),
)
