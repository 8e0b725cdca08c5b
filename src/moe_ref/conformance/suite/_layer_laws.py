"""Checks of `layer`: laws between calls, which hold whatever the oracle says."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data_layer import about, drawn, with_experts
from moe_ref.conformance.suite._layer_gradients import one
from moe_ref.conformance.suite._layer_judge import (
    NO_GRADIENT,
    given_gradients,
    gradients_of,
    near,
    own_truth,
    place_in,
    token,
)
from moe_ref.spec import LayerSpec

_Calls = Callable[[Case], Mapping[str, Case]]
# Rows of the case, and those of the other call that must be the same.
_Rows = Callable[[Case, str], tuple[Any, Any]]


def _half(case: Case) -> int:
    return len(case.arrays["x"]) // 2


def _permuted(case: Case) -> dict[str, Case]:
    x, dy = (case.arrays[name][::-1].copy() for name in ("x", "cotangent"))
    return {"permuted": case.replace(x=x, cotangent=dy)}


def _reversed_rows(case: Case, call: str) -> tuple[Any, Any]:
    return slice(None, None, -1), slice(None)


def _company(case: Case) -> dict[str, Case]:
    """The first half of the tokens among others; behind copies of one token; tokens alone."""
    x, half = case.arrays["x"], _half(case)
    others = np.concatenate([x[:half], np.roll(x[half:], 7, axis=1)])
    crowd = np.concatenate([np.repeat(x[:1], len(x) - half, axis=0), x[:half]])
    return {"others": case.replace(x=others), "crowd": case.replace(x=crowd)} | _alone(case)


def _alone(case: Case) -> dict[str, Case]:
    x, dy = (case.arrays[name] for name in ("x", "cotangent"))
    return {f"alone{t}": case.replace(x=x[t : t + 1], cotangent=dy[t : t + 1]) for t in (0, 3, 9)}


def _first_half(case: Case, call: str) -> tuple[Any, Any]:
    if call == "permuted":
        return _reversed_rows(case, call)
    if call.startswith("alone"):
        only = int(call.removeprefix("alone"))
        return slice(only, only + 1), slice(None)
    half = _half(case)
    return slice(half), slice(-half, None) if call == "crowd" else slice(half)


def _everything(case: Case) -> dict[str, Case]:
    return _company(case) | _permuted(case)


def _same_rows(case: Case, call: str) -> tuple[Any, Any]:
    return slice(None), slice(None)


def _order(spec: LayerSpec) -> np.ndarray:
    """Experts from last to first; whole groups, and zero experts where they were."""
    router = spec.router
    groups = np.arange(router.num_experts).reshape(router.num_groups, -1)
    real = groups[::-1].reshape(-1) if router.num_groups > 1 else groups[0, ::-1]
    return np.concatenate([real, np.arange(router.num_experts, router.num_choices)])


def _relabelled(case: Case) -> dict[str, Case]:
    order, layer = _order(case.spec), case.arrays["layer"]
    router = {name: array[order] for name, array in layer["router"].items()}
    real = order[: case.spec.router.num_experts]
    experts = {name: array[real] for name, array in layer["experts"].items()}
    return {"relabelled": case.replace(layer=layer | {"router": router, "experts": experts})}


def _unused(case: Case) -> dict[str, Case]:
    """One more expert, before all others, with the mean of their logits: never the largest."""
    layer, more = case.arrays["layer"], case.spec.router.num_experts + 1
    weight = layer["router"]["weight"]
    mean = weight.astype(np.float64).mean(axis=0, keepdims=True).astype(weight.dtype)
    router = layer["router"] | {"weight": np.concatenate([mean, weight])}
    experts = {n: np.concatenate([a[:1], a]) for n, a in layer["experts"].items()}
    spec = case.spec.replace(num_experts=more)
    larger = case.replace(layer=layer | {"router": router, "experts": experts})
    return {"more": dataclasses.replace(larger, spec=spec)}


def _steered(case: Case) -> dict[str, Case]:
    layer = case.arrays["layer"]
    bias = layer["router"]["selection_bias"]
    router = layer["router"] | {"selection_bias": bias + np.asarray(1.0, bias.dtype)}
    return {"steered": case.replace(layer=layer | {"router": router})}


def _parts(case: Case) -> dict[str, Case]:
    """The first half of the experts give 0, the others do."""
    layer = case.arrays["layer"]
    w = layer["experts"]["w_out"]
    first = (np.arange(len(w)) < len(w) // 2)[:, None, None]
    parts = {"first": np.where(first, w, 0), "second": np.where(first, 0, w)}
    return {
        name: case.replace(layer=with_experts(case, w_out=part.astype(w.dtype)))
        for name, part in parts.items()
    }


def _judge_same(case: Case, outputs: Outputs, *, calls: _Calls, rows: _Rows) -> Judgement:
    """The same rows of two calls, where rounding decides the choice in neither."""
    truth, judged = own_truth(case), []
    for name, other in calls(case).items():
        mine, theirs = rows(case, name)
        there = own_truth(other)
        sure = ~(truth.ambiguous[mine] | there.ambiguous[theirs])
        limits = truth.output[mine], there.output[theirs]
        actual, expected = outputs[f"{name}.y"][theirs], outputs["y"][mine]
        judged.append(near(actual, expected, *limits, where=token, rows=sure))
    return all_of(*judged)


def _judge_bits(case: Case, outputs: Outputs) -> Judgement:
    judged = []
    for name in _everything(case):
        mine, theirs = _first_half(case, name)
        for result in ("y", "weights", "experts"):
            if result in outputs:
                actual, expected = outputs[f"{name}.{result}"][theirs], outputs[result][mine]
                judged.append(equal(actual, expected, where=token))
    return all_of(*judged)


def _judge_repeated(case: Case, outputs: Outputs) -> Judgement:
    """Every token beside the first one that equals it."""
    x, truth, y = case.arrays["x"].astype(np.float64), own_truth(case), outputs["y"]
    _, first, which = np.unique(x, axis=0, return_index=True, return_inverse=True)
    first = first[which.reshape(-1)]
    limits = truth.output, truth.output[first]
    return near(y, y[first], *limits, where=token, rows=~truth.ambiguous)


def _judge_sum(case: Case, outputs: Outputs) -> Judgement:
    truths = [own_truth(call) for call in (case, *_parts(case).values())]
    first, second = (outputs[f"{name}.y"].astype(np.float64) for name in ("first", "second"))
    limits = [truth.output for truth in truths]
    return near(outputs["y"], first + second, *limits, where=token, rows=~truths[0].ambiguous)


def _moved(name: str, gradient: Any, case: Case, call: str) -> Any:
    """The gradient as it must be in the other call."""
    if call == "permuted":
        return gradient[::-1] if name == "x" else gradient
    order = _order(case.spec)
    if name.startswith("layer.experts"):
        return gradient[order[: case.spec.router.num_experts]]
    return gradient[order] if name.startswith("layer.router") else gradient


def _permuted_relabelled(case: Case) -> dict[str, Case]:
    return _permuted(case) | _relabelled(case)


def _judge_moved_gradients(case: Case, outputs: Outputs) -> Judgement:
    truth, judged = gradients_of(case, outputs), []
    for call in _permuted_relabelled(case):
        for name in given_gradients(outputs):
            if name in truth:
                expected = _moved(name, outputs[f"grad.{name}"], case, call)
                limit = _moved(name, truth[name], case, call)
                options = {"where": place_in(name), "whole": not name.startswith("layer.experts")}
                actual = outputs[f"{call}.grad.{name}"]
                judged.append(near(actual, expected, limit, limit, **options))
    return all_of(*judged) if judged else NO_GRADIENT


def _mixtral(rng, dtype, budget):
    yield from drawn(rng, ["mixtral-8x7b"], dtype, budget)


def _deepseek(rng, dtype, budget):
    yield from drawn(rng, ["deepseek-v3"], dtype, budget)


def _kinds(rng, dtype, budget):
    once = ("deepseek-v3", "gpt-oss-20b", "everything else")
    yield from drawn(rng, ("mixtral-8x7b", *once), dtype, budget, once=once)


def _one_choice(rng, dtype, budget):
    yield from drawn(rng, ["llama4-scout"], dtype, budget, once=["llama4-scout"])


def _accompanied(rng, dtype, budget):
    yield from drawn(rng, ["mixtral-8x7b"], dtype, budget, once=["mixtral-8x7b"])


def _repeats(rng, dtype, budget):
    for case in drawn(rng, ("mixtral-8x7b", "deepseek-v3"), dtype, budget):
        x, half = case.arrays["x"].copy(), _half(case)
        x[half : 2 * half] = x[:half]
        yield about(case, "every token twice", x=x)
        yield about(case, "all tokens equal", x=np.repeat(x[:1], len(x), axis=0))


_SAME = "|y - y'| <= bound + bound'"


def _law(number: int, statement: str, cases, calls: _Calls, rows: _Rows, **fields: Any) -> Check:
    judge = functools.partial(_judge_same, calls=calls, rows=rows)
    return _check(number, statement, cases, judge, related=calls, **fields)


def _check(number: int, statement: str, cases, judge, **options: Any) -> Check:
    fields: dict[str, Any] = {"kind": "metamorphic", "formula": _SAME} | options
    return Check(
        id=f"LAY-{number:02d}", op="layer", statement=statement, cases=cases, judge=judge, **fields
    )


CHECKS = (
    _law(17, "Permuting the tokens permutes the outputs.", _mixtral, _permuted, _reversed_rows),
    _law(
        18,
        "Relabelling the experts, in the router too, changes nothing.",
        _kinds,
        _relabelled,
        _same_rows,
        may_refuse=True,
    ),
    _law(
        19,
        "A token's output does not depend on the tokens beside it, nor on how many there are.",
        _accompanied,
        _company,
        _first_half,
        may_refuse=True,  # of one token
    ),
    _check(20, "Equal tokens have equal outputs.", _repeats, _judge_repeated, may_refuse=True),
    _check(
        21,
        "Outputs add up over experts: those with half of them giving 0 are those of all.",
        _mixtral,
        _judge_sum,
        formula="y(W) = y(W1) + y(W2), within all their bounds",
        related=_parts,
    ),
    _law(
        22,
        "One more expert that no token visits changes nothing.",
        _one_choice,
        _unused,
        _same_rows,
        may_refuse=True,
    ),
    _law(
        23,
        "A constant added to every selection bias changes nothing.",
        _deepseek,
        _steered,
        _same_rows,
        may_refuse=True,
    ),
    _check(
        24,
        "The bits of a token's output, weights and choice depend on that token only.",
        _mixtral,
        _judge_bits,
        formula="y = y'",
        related=_everything,
        needs="batch_invariant",
    ),
    _check(
        25,
        "Permuting tokens, or relabelling experts, moves gradients along.",
        one,
        _judge_moved_gradients,
        method="vjp",
        related=_permuted_relabelled,
        formula="|g - g'| <= bound + bound'",
    ),
)
