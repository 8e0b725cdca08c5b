"""Checks of `grouped_matmul`: faults too small for the bound of any one element.

Rows of the result and of dx are independent clusters, and so are rows of one expert's dw.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance._statistics import misrounded, rms, score
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._grouped_cases import (
    LARGE,
    gradients_of,
    grouped_case,
    owners,
    truth_of,
    with_cotangent,
)
from moe_ref.oracle._formats import FORMATS
from moe_ref.oracle._value import concatenated
from moe_ref.spec import Numerics

# What is judged of one expert: the results, their truth, and a name.
_Part = tuple[np.ndarray, oracle.Value, str]
_Statistic = Callable[[list[_Part]], list[Judgement]]


def _draw(rng, dtype, budget) -> Iterator[Case]:
    for k, n in ((64, 48),) if budget == "smoke" else ((64, 48), (512, 256)):
        label = f"{sum(LARGE)} rows, k={k}, n={n}"
        yield with_cotangent(rng, grouped_case(rng, label, dtype, LARGE, k=k, n=n))


def _draw_narrow(rng, dtype, budget) -> Iterator[Case]:
    if dtype in ("bfloat16", "float16"):
        yield from _draw(rng, dtype, budget)


def _judge(case: Case, outputs: Outputs, *, name: str, statistic: _Statistic) -> Judgement:
    numerics = case.numerics or Numerics.of(case.dtype)
    reason = _blurred(numerics, name)
    if reason is not None:
        return Judgement(status="skipped", detail=reason)
    parts = _parts(case, outputs[name], name)
    if not parts:  # a failing input that is being made smaller
        return Judgement(status="cannot tell", detail="no rows tell nothing")
    return all_of(*statistic(parts))


def _blurred(numerics: Numerics, name: str) -> str | None:
    """Why errors have a direction, or rows share them, in a kernel that is right."""

    def below(first: str | None, second: str) -> bool:
        return first is not None and FORMATS[first].bits < FORMATS[second].bits

    result = numerics.output if name == "y" else numerics.gradient
    if numerics.accumulate_rounding == "toward_zero" and not below(result, numerics.accumulate):
        return "sums are declared to be truncated, so errors have a direction"
    if below(numerics.multiply, numerics.inputs):
        return "operands are declared to be rounded, and rows share their errors"
    rounded = below(numerics.cotangent, numerics.output)
    if name == "grad.w" and (rounded or below(numerics.multiply, numerics.cotangent)):
        return "cotangents are declared to be rounded, and rows of dw share their errors"
    return None


def _parts(case: Case, actual: np.ndarray, name: str) -> list[_Part]:
    """By expert that has rows, one of each set of equal rows: copies are no news."""
    x, owner = case.arrays["x"].astype(np.float64), owners(case)
    parts = []
    if name == "grad.w":
        truth = gradients_of(case).w
        for expert in np.unique(owner):
            rows = _first(x[: len(owner)][owner == expert].T)
            parts.append((actual[expert][rows], truth[expert][rows], f"dw of expert {expert}"))
        return parts
    given = x if name == "y" else case.arrays["cotangent"].astype(np.float64)
    truth = truth_of(case) if name == "y" else gradients_of(case).x
    what = "the results" if name == "y" else "the gradients"
    for expert in np.unique(owner):
        rows = np.flatnonzero(owner == expert)
        rows = rows[_first(given[rows])]
        parts.append((actual[rows], truth[rows], f"{what} of expert {expert}"))
    return parts


def _first(rows: np.ndarray) -> np.ndarray:
    return np.sort(np.unique(rows, axis=0, return_index=True)[1])


def _sizes(parts: list[_Part]) -> list[Judgement]:
    return [rms(*_joined(parts))]


def _factors(parts: list[_Part]) -> list[Judgement]:
    return [score(actual, truth, truth.value, what) for actual, truth, what in parts]


def _signs(parts: list[_Part]) -> list[Judgement]:
    actual, truth = _joined(parts)
    return [score(actual, truth, np.sign(truth.value), "the sign of the value")]


def _misrounded(parts: list[_Part]) -> list[Judgement]:
    actual, truth = _joined(parts)
    if actual.dtype.name not in ("bfloat16", "float16"):
        return [Judgement(status="skipped", detail=f"{actual.dtype.name} results are not narrow")]
    return [misrounded(actual, truth, actual.dtype)]


def _joined(parts: list[_Part]) -> tuple[np.ndarray, oracle.Value]:
    actual, truths, _ = zip(*parts, strict=True)
    return np.concatenate(actual), concatenated(list(truths))


_RESULTS = {"y": "results", "grad.x": "gradients of x", "grad.w": "gradients of w"}
_ROWS = (
    (_sizes, _draw, "Errors of {} are no larger than declared.", "rms(error / predicted) <= 1"),
    (_factors, _draw, "No expert's {} are off by a factor.", "errors do not point along the value"),
    (_signs, _draw, "{} are not rounded toward zero.", "errors do not point along the sign"),
    (
        _misrounded,
        _draw_narrow,
        "No more narrow {} miss the nearest number than the sum's rounding explains.",
        "number of results other than RN(value)",
    ),
)


def _check(number: int, name: str, row: int) -> Check:
    statistic, draw, statement, formula = _ROWS[row]
    said = statement.format(_RESULTS[name])
    return Check(
        id=f"GRP-{number}",
        op="grouped_matmul",
        statement=said[0].upper() + said[1:],
        formula=formula,
        kind="statistics",
        cases=draw,
        judge=functools.partial(_judge, name=name, statistic=statistic),
        method="value" if name == "y" else "vjp",
        wants=() if name == "y" else (name,),
    )


CHECKS = (
    *(_check(16 + row, "y", row) for row in range(4)),
    *(_check(43 + 2 * row, "grad.x", row) for row in range(4)),
    *(_check(44 + 2 * row, "grad.w", row) for row in range(4)),
)
