"""Checks of `layer`: faults too small for the bound of any one output.

Tokens are independent clusters: all outputs of a token share the errors of its hidden layers.
"""

import functools
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance._statistics import CLUSTERS, misrounded, rms, score
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data_layer import NARROW, SPECS, layer_case
from moe_ref.conformance.suite._layer_judge import clear_rows, truth_of
from moe_ref.oracle._formats import FORMATS
from moe_ref.spec import Numerics

# Some 128 tokens visit each of the 8 experts.
_TOKENS, _D_MODEL, _D_HIDDEN = 512, 128, 64


def _draw(rng, dtype, budget):
    names = ("mixtral-8x7b",) if budget == "smoke" else ("mixtral-8x7b", "deepseek-v3")
    for name in names:
        spec = SPECS[name].replace(d_model=_D_MODEL, d_hidden=_D_HIDDEN)
        label = f"{name}, {_TOKENS} tokens"
        yield layer_case(rng, label, spec, dtype, tokens=_TOKENS)


def _draw_narrow(rng, dtype, budget):
    if dtype in NARROW:
        yield from _draw(rng, dtype, budget)


def _judge(case: Case, outputs: Outputs, *, statistic) -> Judgement:
    reason = _blurred(case.numerics or Numerics.of(case.dtype))
    if reason is not None:
        return Judgement(status="skipped", detail=reason)
    truth = truth_of(case, outputs)
    return all_of(*statistic(case, outputs, truth, clear_rows(truth, outputs)))


def _blurred(numerics: Numerics) -> str | None:
    """Why errors have a direction, or tokens share them, in a kernel that is right."""
    exact_output = FORMATS[numerics.output].bits >= FORMATS[numerics.accumulate].bits
    if numerics.accumulate_rounding == "toward_zero" and exact_output:
        return "sums are declared to be truncated, so errors have a direction"
    if numerics.multiply and FORMATS[numerics.multiply].bits < FORMATS[numerics.inputs].bits:
        return "operands are declared to be rounded, and tokens share the errors of weights"
    return None


def _sizes(case: Case, outputs: Outputs, truth: oracle.LayerResult, rows) -> list[Judgement]:
    return [rms(outputs["y"][rows], truth.output[rows])]


def _factors(case: Case, outputs: Outputs, truth: oracle.LayerResult, rows) -> list[Judgement]:
    """Along the whole output, and along what each expert adds, in the tokens that visit it."""
    judged = [score(outputs["y"][rows], truth.output[rows], truth.value[rows], "the output")]
    ids = np.where(truth.kept, truth.routing.experts, -1)
    for expert in range(case.spec.router.num_experts):
        mine = ids == expert
        visits = rows & mine.any(axis=1)
        if visits.sum() < CLUSTERS:  # an expert that few tokens choose
            continue
        added = np.where(mine[:, :, None], truth.contributions, 0).sum(axis=1)
        what = f"what expert {expert} adds"
        judged.append(score(outputs["y"][visits], truth.output[visits], added[visits], what))
    return judged


def _signs(case: Case, outputs: Outputs, truth: oracle.LayerResult, rows) -> list[Judgement]:
    sign = np.sign(truth.value[rows])
    return [score(outputs["y"][rows], truth.output[rows], sign, "the sign of the output")]


def _misrounded(case: Case, outputs: Outputs, truth: oracle.LayerResult, rows) -> list[Judgement]:
    y = outputs["y"]
    if y.dtype.name not in NARROW:
        return [Judgement(status="skipped", detail=f"{y.dtype.name} results are not narrow")]
    return [misrounded(y[rows], truth.output[rows], y.dtype)]


def _check(number: int, statement: str, formula: str, statistic, cases: Any = _draw) -> Check:
    return Check(
        id=f"LAY-{number}",
        op="layer",
        statement=statement,
        formula=formula,
        kind="statistics",
        cases=cases,
        judge=functools.partial(_judge, statistic=statistic),
    )


CHECKS = (
    _check(
        30,
        "Errors of the outputs are no larger than declared.",
        "rms(error / predicted) <= 1",
        _sizes,
    ),
    _check(
        31,
        "Neither the outputs nor what one expert adds to them are off by a factor.",
        "errors do not point along w_e expert_e(x)",
        _factors,
    ),
    _check(
        32,
        "Outputs are not rounded toward zero.",
        "errors do not point along the sign",
        _signs,
    ),
    _check(
        33,
        "No more narrow outputs miss the nearest number than earlier roundings explain.",
        "number of outputs other than RN(value)",
        _misrounded,
        _draw_narrow,
    ),
)
