"""Checks of `grouped_matmul`: gradients, with random cotangents."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, failed
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import _grouped_cases as cases
from moe_ref.conformance.suite._data import one_expert_sizes
from moe_ref.conformance.suite._grouped_cases import (
    EXPERTS,
    ROWS,
    based,
    belongs,
    gradients_of,
    owners,
    where_row,
    where_weight,
    with_cotangent,
)
from moe_ref.conformance.suite._grouped_values import judge_signed

NO_GRADIENT = Judgement(status="skipped", detail="no gradient is reported")


def judge_dx(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of x, rows that belong to a group, within the bound."""
    truth = gradients_of(case).x
    return judge_signed(outputs["grad.x"], truth, where=where_row(case), rows=belongs(case))


def judge_dw(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of w, within the bound."""
    return judge_signed(outputs["grad.w"], gradients_of(case).w, where=where_weight)


def judge_empty(case: Case, outputs: Outputs) -> Judgement:
    """An empty group's gradient is exactly zero."""
    dw = outputs["grad.w"]
    empty = case.arrays["group_sizes"] == 0
    expected = np.where(empty[:, None, None], np.zeros_like(dw), dw)
    return equal(dw, expected, where=where_weight)


def judge_zero_tail(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of rows that belong to no group is exactly zero."""
    dx = outputs["grad.x"]
    expected = np.where(belongs(case)[:, None], dx, np.zeros_like(dx))
    return equal(dx, expected, where=where_row(case))


def judge_dtypes(case: Case, outputs: Outputs) -> Judgement:
    """Gradients are of the dtype that is declared."""
    expected = case.dtype if case.numerics is None else case.numerics.gradient
    found = {name: outputs[name].dtype.name for name in gradient_names(outputs)}
    wrong = {name: dtype for name, dtype in found.items() if dtype != expected}
    if not wrong:
        return Judgement(status="pass") if found else NO_GRADIENT
    return failed(f"{', '.join(f'{n} is {d}' for n, d in wrong.items())}, expected {expected}")


def judge_twice(case: Case, outputs: Outputs) -> Judgement:
    """Two calls give the same bits."""
    rows = belongs(case)
    same = [
        equal(outputs[f"again.{name}"][rows], outputs[name][rows], where=where_row(case))
        if name == "grad.x"
        else equal(outputs[f"again.{name}"], outputs[name], where=where_weight)
        for name in gradient_names(outputs)
    ]
    return all_of(*same) if same else NO_GRADIENT


def gradient_names(outputs: Outputs) -> list[str]:
    """Names of the gradients that the kernel gave for the case itself."""
    return [name for name in outputs if name.startswith("grad.")]


def _with_cotangents(draw):
    def drawn(rng, dtype, budget) -> Iterator[Case]:
        return (with_cotangent(rng, case) for case in draw(rng, dtype, budget))

    return drawn


def _thinned(draw):
    """The same inputs with cotangents; in a smoke run every other one in one dtype only.

    Compiling a gradient takes a second, of which there are many shapes.
    """

    def drawn(rng, dtype, budget) -> Iterator[Case]:
        for number, case in enumerate(draw(rng, dtype, budget)):
            once = case.once or (budget == "smoke" and number % 2 == 1)
            yield dataclasses.replace(with_cotangent(rng, case), once=once)

    return drawn


def _skewed(rng, dtype, budget) -> Iterator[Case]:
    skewed = cases.skewed(rng, dtype, budget)
    yield from skewed if budget == "thorough" else itertools.islice(skewed, 1)
    if budget == "smoke":
        yield cases.large_group(rng, dtype)
        yield from cases.long_sums(rng, dtype)
    yield based(rng, "all rows to expert 2", dtype, one_expert_sizes(experts=7, rows=ROWS, hot=2))
    square = based(rng, "idle experts, square weights", dtype, (0, 9, 0, 0, 17, 39, 0), k=48)
    yield dataclasses.replace(square, once=budget == "smoke")
    even = (9,) * EXPERTS, (1,) * EXPERTS  # and a tail
    for sizes in ((0, 0, 19, 0, 27, 0, 19), (19, 0, 27, 0, 19, 0, 0), *even):
        yield based(rng, f"sizes {list(sizes)}", dtype, sizes)
    for case in cases.many(rng, dtype, budget):
        yield dataclasses.replace(case, once=True)


def _empty(rng, dtype, budget) -> Iterator[Case]:
    for sizes in ((8, 0, 8, 0), (0, 16), (0, 0, 0, 0, 0, 0, 16), ()):
        case = with_cotangent(rng, based(rng, f"sizes {list(sizes)}", dtype, sizes))
        yield case
        weights = case.arrays["w"].copy()
        weights[case.arrays["group_sizes"] == 0] = np.nan
        label = f"{case.label}, NaN in idle experts"
        yield Case(label=label, arrays=case.arrays | {"w": weights})


def _poisoned_tail(rng, dtype, budget) -> Iterator[Case]:
    for case in (with_cotangent(rng, c) for c in cases.poisoned_tail(rng, dtype, budget)):
        case.arrays["cotangent"][~belongs(case)] = case.arrays["x"][-1, 0]
        yield case


def _poisoned_row(rng, dtype, budget) -> Iterator[Case]:
    for name in ("x", "cotangent"):
        case = with_cotangent(rng, based(rng, f"NaN in row 12 of {name}", dtype))
        case.arrays[name][12] = np.nan
        yield case
    for name, poison in itertools.product(("x", "cotangent"), (np.inf, -np.inf, np.nan)):
        case = with_cotangent(rng, based(rng, f"{poison} in row 12 of {name}", dtype))
        case.arrays[name][12, 3] = poison
        yield case


def _small_cotangent(rng, dtype, budget) -> Iterator[Case]:
    case = with_cotangent(rng, based(rng, "cotangent of expert 2 of size 1e-5", dtype))
    dy = case.arrays["cotangent"]
    dy[owners(case) == 2] *= np.asarray(1e-5, dy.dtype)
    yield case


def _plain(rng, dtype, budget) -> Iterator[Case]:
    yield with_cotangent(rng, based(rng, "sizes of all kinds", dtype))


_DX, _DW = "dx[r] = dy[r] @ w[e(r)]^T", "dw[e] = x_e^T @ dy_e"
_DW_EMPTY = "dw[e] = 0 where group_sizes[e] = 0"
_DX_TAIL = "dx[r] = 0, r >= sum(group_sizes)"
_WANTED = {_DX: "grad.x", _DX_TAIL: "grad.x", _DW: "grad.w", _DW_EMPTY: "grad.w"}


def _check(number: int, statement: str, draw, judge, formula: str, **fields: Any) -> Check:
    return Check(
        id=f"GRP-{number:02d}",
        op="grouped_matmul",
        statement=statement,
        formula=formula,
        kind="gradient",
        method="vjp",
        cases=draw,
        judge=judge,
        wants=(_WANTED[formula],) if formula in _WANTED else (),
        **fields,
    )


def _both(number: int, statement: str, draw, **fields: Any) -> tuple[Check, Check]:
    """The same inputs for the gradient of x and for that of w."""
    return (
        _check(number, statement.format("x"), draw, judge_dx, _DX, **fields),
        _check(number + 1, statement.format("w"), draw, judge_dw, _DW, **fields),
    )


_SKEWED = _with_cotangents(_skewed)
_EXPERT = _with_cotangents(cases.poisoned_expert)

CHECKS = (
    *_both(31, "The gradient of {} is right under skew.", _SKEWED),
    *_both(
        33,
        "The gradient of {} is right around tile edges.",
        _thinned(cases.edges),
        may_refuse=True,
    ),
    _check(
        35,
        "The weight gradient of an empty group is exactly zero, even where its weight is NaN.",
        _empty,
        judge_empty,
        _DW_EMPTY,
    ),
    *_both(
        36,
        "What rows past the last group hold, in x or in the cotangent, reaches no gradient of {}.",
        _poisoned_tail,
    ),
    _check(
        38,
        "The gradient of rows past the last group is zero.",
        _poisoned_tail,
        judge_zero_tail,
        _DX_TAIL,
        needs="zero_tail",
    ),
    _check(
        39,
        "A NaN or Inf in one row, or in its cotangent, reaches the weight gradient of its expert "
        "only.",
        _poisoned_row,
        judge_dw,
        _DW,
    ),
    _check(
        40,
        "A NaN or Inf in one row's cotangent reaches the gradient of that row only.",
        _poisoned_row,
        judge_dx,
        _DX,
    ),
    _check(
        41,
        "A NaN or Inf in one expert's weight reaches the gradient of that expert's rows only.",
        _EXPERT,
        judge_dx,
        _DX,
    ),
    _check(
        42,
        "A NaN or Inf in one expert's weight reaches no weight gradient.",
        _EXPERT,
        judge_dw,
        _DW,
    ),
    *_both(57, "The gradient of {} is right for 1, 3 or 5 rows.", _thinned(cases.tiny)),
    _check(
        59,
        "A small cotangent of one expert's rows keeps its relative accuracy in their gradient.",
        _small_cotangent,
        judge_dx,
        _DX,
    ),
    _check(
        60,
        "A small cotangent of one expert's rows keeps its relative accuracy in the weight's.",
        _small_cotangent,
        judge_dw,
        _DW,
    ),
    _check(
        61,
        "Two runs on the same input give the same bits of every gradient.",
        _SKEWED,
        judge_twice,
        "dx = dx', dw = dw'",
        related=lambda case: {"again": case},
        needs="deterministic",
    ),
    _check(
        62,
        "A gradient has the dtype of its input, or the one declared for it.",
        _plain,
        judge_dtypes,
        "dx: dtype of x; dw: dtype of w",
    ),
    *_both(
        74,
        "Numbers far from 1 are neither clipped nor taken for 0 in the gradient of {}.",
        cases.other_magnitudes,
    ),
)
