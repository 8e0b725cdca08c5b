"""Checks of `layer`: gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, failed, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data_layer import NARROW, ROUNDED, SPECS, about, drawn, steep_cases
from moe_ref.conformance.suite._layer import finite_tokens, idle_nan, masked, nan_token, skewed
from moe_ref.conformance.suite._layer_judge import (
    NO_GRADIENT,
    given_gradients,
    gradients_of,
    judge_gradients,
    near,
    own_routing,
    place_in,
)


def _presets(rng, dtype, budget):
    # The others at smoke are one more than there is time for, and one with padding: LAY-10.
    names = ("mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "llama4-scout", "qwen2-57b-a14b")
    once = [name for name in names if name not in ROUNDED]
    yield from drawn(rng, names if budget == "smoke" else SPECS, dtype, budget, once=once)
    # No clamp: it leaves so little of a gradient that narrow gates hide it.
    yield from steep_cases(rng, ("mixtral-8x7b", "qwen2-57b-a14b"), dtype, budget)


def one(rng, dtype, budget):
    """One layer; another one, of groups and a selection bias, in one dtype."""
    yield from drawn(rng, ["mixtral-8x7b", "deepseek-v3"], dtype, budget, once=["deepseek-v3"])


def _one_token(rng, dtype, budget):
    for case in one(rng, dtype, budget):
        for scale in (1.0, 1e-5):
            dy = case.arrays["cotangent"] * np.asarray(scale, case.arrays["cotangent"].dtype)
            dy[np.arange(len(dy)) != 5] = 0
            yield about(case, f"cotangent of one token, times {scale:g}", cotangent=dy)


def _visited(case: Case, outputs: Outputs) -> np.ndarray:
    return outputs["experts"] if "experts" in outputs else own_routing(case).experts


def judge_skewed(case: Case, outputs: Outputs) -> Judgement:
    """Every gradient; two near-equal narrow weights may lose that of the router."""
    return judge_gradients(case, outputs, quiet="layer.router" if case.dtype in NARROW else None)


def _judge_idle(case: Case, outputs: Outputs) -> Judgement:
    """Every gradient; and exactly zero for experts that no token reached."""
    visited = np.isin(np.arange(case.spec.router.num_experts), _visited(case, outputs))
    judged = [judge_skewed(case, outputs)]
    return all_of(*judged, *_zero(outputs, {"layer.experts.": ~visited}))


def _zero(outputs: Outputs, rows: Mapping[str, np.ndarray]) -> list[Judgement]:
    """Judge that rows of gradients are exactly zero, by how the gradients' names begin."""
    judged = []
    for name in given_gradients(outputs):
        for prefix, zero in rows.items():
            if name.startswith(prefix):
                gradient = outputs[f"grad.{name}"]
                expected = gradient.copy()
                expected[zero] = 0
                judged.append(equal(gradient, expected, where=place_in(name)))
    return judged


def _judge_other_gradients(case: Case, outputs: Outputs) -> Judgement:
    """A NaN token: the gradient of every other token as ever."""
    keep = finite_tokens(case)
    x, dy = (case.arrays[name] for name in ("x", "cotangent"))
    clean = {n: np.where(keep[:, None], a, np.zeros_like(a)) for n, a in (("x", x), ("dy", dy))}
    truth = gradients_of(case.replace(x=clean["x"], cotangent=clean["dy"]), outputs)["x"]
    return within(outputs["grad.x"], truth, where=place_in("x"), rows=keep)


def _judge_one_token(case: Case, outputs: Outputs) -> Judgement:
    """One token's gradients; zero for all other tokens, and for experts it does not visit."""
    tokens = (case.arrays["cotangent"] != 0).any(axis=1)
    mine = np.isin(np.arange(case.spec.router.num_experts), _visited(case, outputs)[tokens])
    judged = _zero(outputs, {"x": ~tokens, "layer.experts.": ~mine})
    truth = gradients_of(case, outputs)
    for name in given_gradients(outputs):
        rows = tokens if name == "x" else mine if name.startswith("layer.experts.") else None
        if name in truth:
            actual, where = outputs[f"grad.{name}"], place_in(name)
            found = within(actual, truth[name], where=where, rows=rows, whole=rows is None)
            # One token's two weights may be so near that its gradient of the router is lost.
            if found.status == "fail" or rows is not None:
                judged.append(found)
    return all_of(*judged) if judged else NO_GRADIENT


def _halves(case: Case) -> dict[str, Case]:
    """The cotangent of every other token, and that of the rest."""
    dy = case.arrays["cotangent"]
    even = (np.arange(len(dy)) % 2 == 0)[:, None]
    parts = {"first": np.where(even, dy, 0), "second": np.where(even, 0, dy)}
    return {name: case.replace(cotangent=part.astype(dy.dtype)) for name, part in parts.items()}


def _judge_sum(case: Case, outputs: Outputs) -> Judgement:
    names = [n for n in given_gradients(outputs) if not n.endswith("selection_bias")]
    calls = [case, *_halves(case).values()]
    truths = [gradients_of(call, outputs) for call in calls]
    judged = []
    for name in names:
        first, second = (outputs[f"{c}.grad.{name}"] for c in ("first", "second"))
        total = first.astype(np.float64) + second.astype(np.float64)
        limits = [truth[name] for truth in truths]
        whole = not name.startswith("layer.experts")
        where = place_in(name)
        judged.append(near(outputs[f"grad.{name}"], total, *limits, where=where, whole=whole))
    return all_of(*judged) if judged else NO_GRADIENT


def _judge_form(case: Case, outputs: Outputs) -> Judgement:
    inputs = leaves({k: case.arrays[k] for k in ("x", "layer")})
    declared = () if case.numerics is None else (case.numerics.gradient,)
    names = given_gradients(outputs)
    for name in names:
        mine = outputs[f"grad.{name}"].dtype.name
        if mine not in (inputs[name].dtype.name, *declared):
            return failed(f"d{name} is {mine}, expected {inputs[name].dtype.name}")
    return Judgement(status="pass") if names else NO_GRADIENT


def _judge_twice(case: Case, outputs: Outputs) -> Judgement:
    judged = [
        equal(outputs[f"again.grad.{n}"], outputs[f"grad.{n}"], where=place_in(n))
        for n in given_gradients(outputs)
    ]
    return all_of(*judged) if judged else NO_GRADIENT


def _check(number: int, statement: str, cases, judge=judge_gradients, **options: Any) -> Check:
    fields: dict[str, Any] = {
        "kind": "gradient",
        "formula": "dx, dparameters of sum(y * dy)",
    } | options
    return Check(
        id=f"LAY-{number:02d}",
        op="layer",
        statement=statement,
        cases=cases,
        judge=judge,
        method="vjp",
        **fields,
    )


CHECKS = (
    _check(
        7,
        "Every gradient is right: input, router, experts, shared; the selection bias has none.",
        _presets,
        may_refuse=True,
    ),
    _check(8, "Every gradient is right under skew.", skewed, judge_skewed),
    _check(
        9,
        "Experts that no token visits get exactly zero gradient, and their NaNs reach none.",
        idle_nan,
        _judge_idle,
        formula="dw[e] = 0 where no token visits e",
    ),
    _check(10, "The contents of padding tokens reach no gradient.", masked, may_refuse=True),
    _check(
        11,
        "A NaN or Inf in one token reaches the gradient of that token only.",
        nan_token,
        _judge_other_gradients,
        wants=("grad.x",),
    ),
    _check(
        26,
        "The gradients of one token's output, small or not, reach that token and its experts only.",
        _one_token,
        _judge_one_token,
        formula="dw[e] = 0, dx[t'] = 0 where dy[t'] = 0; relative accuracy elsewhere",
    ),
    _check(
        27,
        "Gradients add up over tokens: those of two halves of the cotangent are those of it.",
        one,
        _judge_sum,
        kind="metamorphic",
        formula="g(dy) = g(dy1) + g(dy2), within all their bounds",
        related=_halves,
    ),
    _check(
        28,
        "Every gradient has the dtype of its input, or the one declared for it.",
        one,
        _judge_form,
        kind="exact",
        formula="dw: dtype of w",
    ),
    _check(
        29,
        "Two runs on the same input give the same bits of every gradient.",
        one,
        _judge_twice,
        kind="exact",
        formula="dw = dw'",
        related=lambda case: {"again": case},
        needs="deterministic",
    ),
)
