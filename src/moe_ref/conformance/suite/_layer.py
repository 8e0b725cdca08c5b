"""Checks of `layer`: values."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import equal, failed, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data_layer import (
    ROUNDED,
    SPECS,
    about,
    audible,
    drawn,
    steep_cases,
    steered,
    with_experts,
)
from moe_ref.conformance.suite._layer_judge import (
    clear_rows,
    judge_layer,
    judge_output,
    own_routing,
    token,
    truth_of,
)


def _presets(rng, dtype, budget, *, heard: bool = False):
    once = [name for name in SPECS if name not in ROUNDED]
    yield from drawn(rng, SPECS, dtype, budget, once=once, heard=heard)


def _heard(rng, dtype, budget):
    yield from _presets(rng, dtype, budget, heard=True)
    names = ("mixtral-8x7b", "gpt-oss-20b", "everything else")
    yield from steep_cases(rng, names, dtype, budget)


def _mixtral(rng, dtype, budget):
    yield from drawn(rng, ["mixtral-8x7b"], dtype, budget)


def _biased(rng, dtype, budget):
    """A layer without biases; one with them in one dtype."""
    yield from drawn(rng, ["mixtral-8x7b", "gpt-oss-20b"], dtype, budget, once=["gpt-oss-20b"])


def _sizes(rng, dtype, budget):
    base = SPECS["mixtral-8x7b"]
    yield audible(rng, "no tokens", base, dtype, tokens=0)
    for case in (
        audible(rng, "one token", base, dtype, tokens=1),
        audible(rng, "k = experts", base.replace(k=8), dtype),
        audible(rng, "one expert", base.replace(num_experts=1, k=1), dtype),
    ):
        yield dataclasses.replace(case, once=budget == "smoke")


def skewed(rng, dtype, budget):
    """All tokens to the same experts."""
    for case in _biased(rng, dtype, budget):
        for hot in ((0, 4, 7), (3, 4, 5)):
            few = hot[-case.spec.router.k :]
            yield steered(rng, about(case, f"all tokens to experts {few}"), few)


def nan_token(rng, dtype, budget):
    """A NaN, then an Inf, in one token."""
    for case in drawn(rng, ["mixtral-8x7b", "deepseek-v3"], dtype, budget, once=["deepseek-v3"]):
        for poison in (np.nan, np.inf):
            x = case.arrays["x"].copy()
            x[7, 3] = poison
            yield about(case, f"{poison} in token 7", x=x)


def idle_nan(rng, dtype, budget):
    """All tokens to the same experts, NaN in the others."""
    for case in _biased(rng, dtype, budget):
        hot = [2, 5, 6][: case.spec.router.k]
        case = steered(rng, about(case, f"NaN in all experts but {hot}"), hot)
        idle = np.setdiff1d(np.arange(case.spec.router.num_experts), hot)
        arrays = {n: array.copy() for n, array in case.arrays["layer"]["experts"].items()}
        for array in arrays.values():
            array[idle] = np.nan
        yield case.replace(layer=with_experts(case, **arrays))


def masked(rng, dtype, budget):
    """Padding tokens that hold NaN, some, then all."""
    names = ("mixtral-8x7b", "everything else")
    more = () if budget == "smoke" else ("deepseek-v3", "gpt-oss-20b")
    for case in drawn(rng, (*names, *more), dtype, budget, once=names):
        mask = rng.permutation(np.arange(len(case.arrays["x"])) % 5 < 3)
        x = np.where(mask[:, None], case.arrays["x"], np.asarray(np.nan, case.arrays["x"].dtype))
        yield about(case, "padding of NaN", mask=mask, x=x)
        yield about(case, "only padding", mask=np.zeros_like(mask), x=np.full_like(x, np.nan))


def _scaled(rng, dtype, budget):
    for case in drawn(rng, ["mixtral-8x7b"], dtype, budget, heard=True):
        for power in (-4, 4) if dtype == "float16" else (-17, 17):
            w = case.arrays["layer"]["experts"]["w_out"]
            w = w * np.asarray(2.0**power, w.dtype)
            yield about(case, f"outputs times 2^{power}", layer=with_experts(case, w_out=w))


def _shared_alone(rng, dtype, budget):
    names = [name for name, spec in SPECS.items() if spec.shared_d_hidden and not spec.output_bias]
    once = [n for n in names if n not in ROUNDED]
    for case in drawn(rng, names, dtype, budget, once=once):
        w = np.zeros_like(case.arrays["layer"]["experts"]["w_out"])
        yield about(case, "routed experts give 0", layer=with_experts(case, w_out=w))


def finite_tokens(case: Case) -> np.ndarray:
    """Which tokens hold neither NaN nor Inf."""
    return np.isfinite(case.arrays["x"].astype(np.float64)).all(axis=1)


def _judge_others(case: Case, outputs: Outputs) -> Judgement:
    """A NaN token: itself not finite, every other token as ever."""
    keep = finite_tokens(case)
    if np.isfinite(outputs["y"][~keep].astype(np.float64)).any():
        return failed("the token itself is finite")
    x = case.arrays["x"]
    clean = case.replace(x=np.where(keep[:, None], x, np.zeros_like(x)))
    truth = truth_of(clean, outputs)
    return within(outputs["y"], truth.output, where=token, rows=keep & clear_rows(truth, outputs))


def _judge_form(case: Case, outputs: Outputs) -> Judgement:
    y, x = outputs["y"], case.arrays["x"]
    dtype = case.dtype if case.numerics is None else case.numerics.output
    if y.dtype.name == dtype:
        return Judgement(status="pass")
    return failed(f"y is {y.dtype.name}{list(y.shape)}, expected {dtype}{list(x.shape)}")


def _judge_logits(case: Case, outputs: Outputs) -> Judgement:
    logits = own_routing(case).logits
    assert logits is not None
    where = lambda place: f"token {place[0]}, logit {place[1]}"  # noqa: E731
    return within(outputs["logits"], logits, where=where)


def _judge_twice(case: Case, outputs: Outputs) -> Judgement:
    return equal(outputs["again.y"], outputs["y"], where=token)


def _check(number: int, statement: str, cases, judge=judge_layer, **options: Any) -> Check:
    fields: dict[str, Any] = {
        "kind": "rounding",
        "formula": "y = sum_j w_j expert_j(x) + shared(x), under the kernel's own routing",
    } | options
    return Check(
        id=f"LAY-{number:02d}", op="layer", statement=statement, cases=cases, judge=judge, **fields
    )


CHECKS = (
    _check(
        1,
        "Layers of many kinds are right, routing and output.",
        _heard,
        may_refuse=True,
    ),
    _check(2, "The layer is right where all tokens visit the same experts.", skewed),
    _check(3, "No tokens, one token, one expert and k = experts are right.", _sizes),
    _check(4, "A NaN in one token reaches that token only.", nan_token, _judge_others),
    _check(5, "Experts that no token visits may hold NaN.", idle_nan),
    _check(
        6,
        "Padding tokens give 0, and their contents reach nothing.",
        masked,
        judge_output,
        may_refuse=True,
    ),
    _check(
        12,
        "The result has the dtype of x, or the one declared for it.",
        _mixtral,
        _judge_form,
        kind="exact",
        formula="y: [tokens, d_model], dtype of x",
    ),
    _check(
        13,
        "Reported logits are those of the router: no scores, no selection bias.",
        _presets,
        _judge_logits,
        formula="logits = softcap(x @ W^T + b)",
        wants=("logits",),
        may_refuse=True,
    ),
    _check(14, "Small and large outputs keep their relative accuracy.", _scaled),
    _check(
        15,
        "Two runs on the same input give the same bits.",
        _mixtral,
        _judge_twice,
        kind="exact",
        formula="y = y'",
        related=lambda case: {"again": case},
        needs="deterministic",
    ),
    _check(
        16,
        "Without routed experts the shared expert is left, once, times its gate.",
        _shared_alone,
        judge_output,
        formula="y = shared(x) sigmoid(x . g)",
        may_refuse=True,
    ),
)
