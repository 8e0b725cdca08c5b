"""Checks of `grouped_matmul_mx`: laws between calls, which hold whatever the oracle says.

A row's result depends on that row and its expert's matrix alone, and a power of two moves scales
and nothing else. A weight's gradient has blocks of several rows, so that it keeps to less.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Method, Outputs
from moe_ref.conformance.suite import _grouped_laws as laws
from moe_ref.conformance.suite import _grouped_mx_cases as cases
from moe_ref.conformance.suite._grouped_cases import belongs, where_row, where_weight
from moe_ref.conformance.suite._grouped_gradients import NO_GRADIENT, gradient_names
from moe_ref.conformance.suite._grouped_mx_cases import gradients_of, truth_of
from moe_ref.conformance.suite._grouped_mx_values import OP, known_dtypes
from moe_ref.oracle._formats import FORMATS


def _split(case: Case) -> dict[str, laws.Move]:
    """The first experts alone, then the others; the rows of the rest lie in the tail."""
    *groups, tail = laws.groups(case)
    sizes, experts = case.arrays["group_sizes"], np.arange(len(case.arrays["w"]))
    first = experts <= len(experts) // 2
    calls = {}
    for name, chosen in {"first": first, "second": ~first}.items():
        own = [groups[e] for e in experts[chosen]]
        rest = [groups[e] for e in experts[~chosen]]
        rows = np.concatenate([*own, *rest, tail])
        calls[name] = laws.Move(rows, experts, np.where(chosen, sizes, 0))
    return calls


def _judge_value(case: Case, outputs: Outputs, *, law: laws.Law) -> Judgement:
    return all_of(*laws.moved_rows(case, outputs, law, "y", truth_of(case)))


def _judge_gradients(
    case: Case, outputs: Outputs, *, law: laws.Law, names: tuple[str, ...]
) -> Judgement:
    truth, given = gradients_of(case), [n for n in gradient_names(outputs) if n in names]
    judged = []
    if "grad.x" in given:
        judged += laws.moved_rows(case, outputs, law, "grad.x", truth.x)
    if "grad.w" in given:
        judged += laws.moved_weights(case, outputs, law, truth.w)
    return all_of(*judged) if judged else NO_GRADIENT


def _judge_bits(case: Case, outputs: Outputs, *, name: str) -> Judgement:
    judged = []
    for law in (laws.relabelled, laws.permuted, _split):
        for call, move in law(case).items():
            other = move.of(case)
            rows = belongs(other)
            actual, expected = outputs[f"{call}.{name}"][rows], outputs[name][move.rows][rows]
            judged.append(equal(actual, expected, where=where_row(other)))
    return all_of(*judged)


def _every_call(case: Case) -> dict[str, Case]:
    every = (laws.relabelled, laws.permuted, _split)
    return {name: call for law in every for name, call in laws.calls(case, law=law).items()}


def _factors(case: Case) -> np.ndarray:
    """A power of two for each row, and one and the same for the rows of an expert's dw."""
    return 2.0 ** (np.arange(len(case.arrays["x"])) % 5 - 2.0)[:, None]


def _scaled_rows(case: Case) -> dict[str, Case]:
    return {"scaled": cases.scaled(case, case.label, x=_factors(case))}


def _scaled_cotangent(case: Case) -> dict[str, Case]:
    return {"scaled": cases.scaled(case, case.label, cotangent=8.0)}


def _judge_scaled_rows(case: Case, outputs: Outputs) -> Judgement:
    rows = np.flatnonzero(belongs(case))
    factors = _factors(case)[rows]
    return _multiplied(outputs, "y", rows, factors, where_row(case))


def _judge_scaled_cotangent(case: Case, outputs: Outputs) -> Judgement:
    judged = [
        _multiplied(outputs, name, slice(None), 8.0, where_weight)
        if name == "grad.w"
        else _multiplied(outputs, name, np.flatnonzero(belongs(case)), 8.0, where_row(case))
        for name in gradient_names(outputs)
    ]
    return all_of(*judged) if judged else NO_GRADIENT


def _multiplied(outputs: Outputs, name: str, rows, factors, where) -> Judgement:
    before = outputs[name][rows].astype(np.float64)
    after = outputs[f"scaled.{name}"][rows].astype(np.float64)
    smallest = FORMATS[outputs[name].dtype.name].smallest_normal
    rounded = np.minimum(np.abs(before), np.abs(factors * before)) < smallest
    return equal(after, np.where(rounded, after, factors * before), where=where)


def _draw(rng, dtype, budget) -> Iterator[Case]:
    yield cases.wide_groups(rng, cases.operands(rng, "groups of all sizes", dtype))


def _draw_blocks(rng, dtype, budget) -> Iterator[Case]:
    """Sums that are rounded: where few products count, every order gives the same bits."""
    yield cases.wide_blocks(rng, cases.operands(rng, "groups of all sizes", dtype))


def _draw_normal(rng, dtype, budget) -> Iterator[Case]:
    case = cases.operands(rng, "groups of all sizes", dtype)
    for name in ("x", "cotangent"):  # far from subnormal numbers, whose multiples have more bits
        array = case.arrays[name]
        array[np.abs(array.astype(np.float64)) < 2.0**-6] = np.asarray(2.0**-6, array.dtype)
    yield case


def _check(
    number: int, statement: str, draw, judge, related, method: Method, formula: str, **options: Any
) -> Check:
    return Check(
        id=f"MXG-{number}",
        op=OP,
        statement=statement,
        formula=formula,
        kind="metamorphic",
        cases=known_dtypes(draw),
        judge=judge,
        method=method,
        related=related,
        **options,
    )


_SAME = "the same row and weight: |y - y'| <= bound + bound'"
_BOTH = ("grad.x", "grad.w")
_LAWS: tuple[tuple[laws.Law, str, tuple[str, ...], int, int], ...] = (
    (laws.relabelled, "Relabelling the experts moves {} along.", _BOTH, 21, 71),
    (_split, "A batch in two calls, each of some experts, gives {} of one call.", _BOTH, 22, 72),
    (laws.permuted, "Permuting the rows of a group permutes {}.", ("grad.x",), 23, 73),
)


def _of_value(law: laws.Law, said: str, number: int) -> Check:
    judge = functools.partial(_judge_value, law=law)
    calls = functools.partial(laws.calls, law=law)
    draw = cases.values_of(_draw)
    return _check(number, said.format("results"), draw, judge, calls, "value", _SAME)


def _of_gradients(law: laws.Law, said: str, names: tuple[str, ...], number: int) -> Check:
    what = "gradients" if len(names) == 2 else "the gradient of x"
    judge = functools.partial(_judge_gradients, law=law, names=names)
    calls = functools.partial(laws.calls, law=law)
    wants = names if len(names) == 1 else ()
    return _check(number, said.format(what), _draw, judge, calls, "vjp", _SAME, wants=wants)


CHECKS = (
    *(_of_value(law, said, number) for law, said, _, number, _ in _LAWS),
    _check(
        24,
        "Powers of two on rows of x come out as they went in, to the bit.",
        cases.values_of(_draw_normal),
        _judge_scaled_rows,
        _scaled_rows,
        "value",
        "f(D x, w) = D f(x, w), D of powers of two",
        needs="deterministic",
    ),
    _check(
        25,
        "The bits of a row's result depend on that row and its weight only.",
        cases.values_of(_draw_blocks),
        functools.partial(_judge_bits, name="y"),
        _every_call,
        "value",
        "y = y'",
        needs="batch_invariant",
    ),
    *(_of_gradients(law, said, names, number) for law, said, names, _, number in _LAWS),
    _check(
        74,
        "Scaling the cotangent by a power of two scales the gradients, to the bit.",
        _draw_normal,
        _judge_scaled_cotangent,
        _scaled_cotangent,
        "vjp",
        "g(8 dy) = 8 g(dy)",
        needs="deterministic",
    ),
    _check(
        75,
        "The bits of a row's gradient depend on that row, its cotangent and its weight only.",
        _draw_blocks,
        functools.partial(_judge_bits, name="grad.x"),
        _every_call,
        "vjp",
        "dx = dx'",
        needs="batch_invariant",
        wants=("grad.x",),
    ),
)
