"""Checks of `grouped_matmul`: it is linear, in x and in the cotangent."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._grouped_cases import (
    based,
    belongs,
    gradients_of,
    where_row,
    where_weight,
    with_cotangent,
)
from moe_ref.conformance.suite._grouped_gradients import NO_GRADIENT, gradient_names
from moe_ref.oracle._formats import FORMATS

_FACTOR = 8.0
_SMALLEST = 2.0**-6


def _draw(rng, dtype, budget) -> Iterator[Case]:
    case = with_cotangent(rng, based(rng, "groups of all sizes", dtype))
    for name in ("x", "cotangent"):  # far from subnormal numbers, whose multiples have more bits
        array = case.arrays[name]
        small = np.abs(array.astype(np.float64)) < _SMALLEST
        array[small] = np.asarray(_SMALLEST, array.dtype)
    yield case


def _scaled(case: Case, *, name: str) -> dict[str, Case]:
    array = case.arrays[name]
    return {"scaled": case.replace(**{name: array * np.asarray(_FACTOR, array.dtype)})}


def _judge_scaled(case: Case, outputs: Outputs, *, name: str) -> Judgement:
    judged = []
    for result in ["y"] if name == "x" else gradient_names(outputs):
        rows, where = _rows(case, result)
        before = outputs[result][rows].astype(np.float64)
        after = outputs[f"scaled.{result}"][rows].astype(np.float64)
        subnormal = np.abs(before) < FORMATS[outputs[result].dtype.name].smallest_normal
        judged.append(equal(after, np.where(subnormal, after, _FACTOR * before), where=where))
    return all_of(*judged) if judged else NO_GRADIENT


def _halves(case: Case) -> dict[str, Case]:
    """The cotangent in two parts, like the colours of a chessboard: their sum rounds nothing."""
    dy = case.arrays["cotangent"]
    black = np.add.outer(*map(np.arange, dy.shape)) % 2 == 0
    parts = {"black": np.where(black, dy, 0), "white": np.where(black, 0, dy)}
    return {name: case.replace(cotangent=part.astype(dy.dtype)) for name, part in parts.items()}


def _judge_sum(case: Case, outputs: Outputs) -> Judgement:
    parts = _halves(case)
    truths = [gradients_of(one) for one in (case, *parts.values())]
    judged = []
    for result in gradient_names(outputs):
        found = [getattr(truth, result.removeprefix("grad.")) for truth in truths]
        limits = {name: sum(getattr(t, name) for t in found) for name in ("bound", "worst")}
        whole = outputs[result].astype(np.float64)
        total = np.sum([outputs[f"{part}.{result}"].astype(np.float64) for part in parts], axis=0)
        rows, where = _rows(case, result)
        truth = dataclasses.replace(found[0], value=whole, **limits)
        judged.append(within(total[rows], truth[rows], where=where))
    return all_of(*judged) if judged else NO_GRADIENT


def _rows(case: Case, result: str):
    """Which rows of a result to look at, and how to name its elements."""
    if result == "grad.w":
        return slice(None), where_weight
    return np.flatnonzero(belongs(case)), where_row(case)


CHECKS = (
    Check(
        id="GRP-26",
        op="grouped_matmul",
        statement="Scaling x by a power of two scales the result, to the bit.",
        formula="f(8 x, w) = 8 f(x, w)",
        kind="metamorphic",
        cases=_draw,
        judge=functools.partial(_judge_scaled, name="x"),
        related=functools.partial(_scaled, name="x"),
        needs="deterministic",
    ),
    Check(
        id="GRP-51",
        op="grouped_matmul",
        statement="The gradients of a sum of cotangents are the sums of their gradients.",
        formula="|g(a) + g(b) - g(a + b)| <= the sum of their bounds",
        kind="metamorphic",
        cases=_draw,
        judge=_judge_sum,
        method="vjp",
        related=_halves,
    ),
    Check(
        id="GRP-52",
        op="grouped_matmul",
        statement="Scaling the cotangent by a power of two scales the gradients, to the bit.",
        formula="g(8 dy) = 8 g(dy)",
        kind="metamorphic",
        cases=_draw,
        judge=functools.partial(_judge_scaled, name="cotangent"),
        method="vjp",
        related=functools.partial(_scaled, name="cotangent"),
        needs="deterministic",
    ),
)
