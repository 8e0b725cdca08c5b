"""Checks of `quantize`: laws between calls, which need no oracle."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._gather import results_of
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.operations._quantize import block_axis, block_length
from moe_ref.conformance.suite import _quantize_cases as cases
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._quantize_judge import (
    along,
    decoded,
    judge_kept,
    judge_readings,
    negated,
    same,
    truth,
)
from moe_ref.conformance.suite._quantize_values import check

_SHIFT, _EXPONENT = 7, 3


def _other_axis(case: Case) -> int:
    """An axis that is not blocked."""
    return -2 if block_axis(case) == -1 else -1


def _twice(case: Case, outputs: Outputs) -> Judgement:
    return _equal(case, outputs, "again.")


def _equal(case: Case, outputs: Outputs, other: str) -> Judgement:
    scales = same(case, "scales", outputs[f"{other}scales"], outputs["scales"])
    return all_of(scales, same(case, "codes", outputs[f"{other}codes"], outputs["codes"]))


def _rolled(case: Case) -> dict[str, Case]:
    return {"moved": case.replace(x=np.roll(case.arrays["x"], _SHIFT, _other_axis(case)))}


def _judge_rolled(case: Case, outputs: Outputs) -> Judgement:
    axis = _other_axis(case)
    moved = {n: np.roll(outputs[f"moved.{n}"], -_SHIFT, axis) for n in ("codes", "scales")}
    return _equal(case, outputs | {f"moved.{n}": a for n, a in moved.items()}, "moved.")


def _turned(case: Case) -> np.ndarray:
    """Places along the blocked axis, in reverse order within each block."""
    length, block = case.arrays["x"].shape[block_axis(case)], block_length(case)
    starts = range(0, length, block)
    return np.concatenate([np.arange(s, min(s + block, length))[::-1] for s in starts])


def _reversed(case: Case) -> dict[str, Case]:
    x = np.take(case.arrays["x"], _turned(case), axis=block_axis(case))
    return {"turned": case.replace(x=x)}


def _judge_reversed(case: Case, outputs: Outputs) -> Judgement:
    back = np.take(outputs["turned.codes"], _turned(case), axis=block_axis(case))
    return _equal(case, outputs | {"turned.codes": back}, "turned.")


def _negative(case: Case) -> dict[str, Case]:
    return {"negative": case.replace(x=-case.arrays["x"])}


def _judge_negative(case: Case, outputs: Outputs) -> Judgement:
    back = negated(case, outputs["negative.codes"])
    return _equal(case, outputs | {"negative.codes": back}, "negative.")


def _larger(case: Case) -> dict[str, Case]:
    factor = np.array(2.0**_EXPONENT, case.arrays["x"].dtype)
    return {"larger": case.replace(x=case.arrays["x"] * factor)}


def _judge_larger(case: Case, outputs: Outputs) -> Judgement:
    back = outputs["larger.scales"].astype(np.int64) - _EXPONENT
    return _equal(case, outputs | {"larger.scales": back}, "larger.")


def _changed(case: Case) -> np.ndarray:
    """Which values belong to every other block, as on a chessboard."""
    x, axis = case.arrays["x"], block_axis(case)
    places = np.indices(x.shape)
    places[axis] //= block_length(case)
    return places.sum(axis=0) % 2 == 1


def _others(case: Case) -> dict[str, Case]:
    x = case.arrays["x"]
    factor = np.array(16.0, x.dtype)
    return {"other": case.replace(x=np.where(_changed(case), x * factor, x))}


def _judge_others(case: Case, outputs: Outputs) -> Judgement:
    changed, shape = _changed(case), outputs["codes"].shape
    other, own = ([outputs[f"{n}{k}"] for k in ("scales", "codes")] for n in ("other.", ""))
    other[0], own[0] = along(case, other[0], shape), along(case, own[0], shape)
    kept = [np.where(changed, mine, theirs) for mine, theirs in zip(own, other, strict=True)]
    scales = same(case, "the scale of codes", kept[0], own[0])
    return all_of(scales, same(case, "codes", kept[1], own[1]))


def _kept(case: Case) -> dict[str, Case]:
    right = truth(case)
    values = decoded(case, right.elements, right.scales)
    return {"kept": case.replace(x=values.astype(dtype_of(case.dtype)))}


def _judge_kept(case: Case, outputs: Outputs) -> Judgement:
    return judge_kept(_kept(case)["kept"], results_of("kept", outputs))


def _exact(number: int, statement: str, inputs: Any, judge: Any, related: Any, **options: Any):
    def judged(case: Case, outputs: Outputs) -> Judgement:
        others = [(other, results_of(name, outputs)) for name, other in related(case).items()]
        readings = [judge_readings(*each) for each in [(case, outputs), *others]]
        return all_of(judge(case, outputs), *readings)

    fields: dict[str, Any] = {"kind": "metamorphic", "related": related} | options
    return check(number, statement, inputs, judged, **fields)


def _scalable(rng, dtype, budget):
    # float16 has no room for magnitudes that are far from 1.
    return (cases.ordinary if dtype == "float16" else cases.wide)(rng, dtype, budget)


CHECKS = (
    _exact(
        40,
        "Two runs on the same input give the same bytes.",
        cases.wide,
        _twice,
        lambda case: {"again": case},
        needs="deterministic",
        kind="exact",
        formula="q(x) = q(x)",
    ),
    _exact(
        41,
        "Rows keep their bytes wherever they lie.",
        cases.wide,
        _judge_rolled,
        _rolled,
        formula="q(P x) = P q(x), P moves rows",
    ),
    _exact(
        42,
        "A value keeps its code wherever it lies in its block.",
        cases.wide,
        _judge_reversed,
        _reversed,
        formula="q(x P) = q(x) P, P reverses each block",
    ),
    _exact(
        43,
        "The negative of an array has the same scales, and the codes of the negatives.",
        cases.wide,
        _judge_negative,
        _negative,
        formula="b(-x) = b(x), p(-x) = -p(x)",
    ),
    _exact(
        44,
        "A power of two goes into the scales alone.",
        _scalable,
        _judge_larger,
        _larger,
        formula="b(8 x) = b(x) + 3, p(8 x) = p(x)",
    ),
    _exact(
        45,
        "A block's bytes do not depend on other blocks.",
        _scalable,
        _judge_others,
        _others,
        formula="q(x)[block] = q(x')[block] where only others changed",
    ),
    _exact(
        46,
        "Values that codes and scales can write come back as they are.",
        _scalable,
        _judge_kept,
        _kept,
        formula="dq(q(dq(q(x)))) = dq(q(x)), under every rule",
    ),
)
