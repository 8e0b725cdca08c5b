"""Checks of both grouped matmuls: calls that become smaller, for kernels that keep memory.

Between calls on the same arrays there are larger ones: with twice as many terms in each sum, and
with twice as many rows and experts. What is left of them in memory, in a tile that the smaller
arrays do not fill, is no part of a sum.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance.operations import Method
from moe_ref.conformance.suite._calls_cases import SUBJECTS
from moe_ref.conformance.suite._grouped_laws import groups
from moe_ref.conformance.suite._grouped_mx_cases import operands, values_of
from moe_ref.conformance.suite._grouped_mx_values import known_dtypes
from moe_ref.conformance.suite._related import each_of

# As many rows as most inputs of MX operands have, of groups that end nowhere near a tile's edge.
_SIZES = (13, 0, 40, 33, 1, 32, 17)
_SUBJECTS = {subject.op: subject for subject in SUBJECTS}


def _drawn(rng, dtype, budget) -> Iterator[Case]:
    # No tile ends with k or n, so that there is room for what was there before.
    case = operands(rng, "k=65, n=31 after larger ones", dtype, _SIZES, tail=0, k=65, n=31)
    yield Case(label=case.label, arrays=case.arrays, once=True, manner="together")


def _calls(case: Case) -> dict[str, Case]:
    """The inputs of the calls that follow, in multiples of the case's sizes."""
    wider = case.replace(**(_more_n(case) if case.has("cotangent") else _more_k(case)))
    more_rows = case.replace(**_more_rows(case))
    more_rows = more_rows.replace(**_more_experts(more_rows))
    return {"wider": wider, "narrower": case, "more_rows": more_rows, "fewer_rows": case}


def _more_k(case: Case) -> dict[str, np.ndarray]:
    return {name: _mirrored(case.arrays[name], 1) for name in ("x", "w")}


def _more_n(case: Case) -> dict[str, np.ndarray]:
    return {n: _mirrored(case.arrays[n], axis) for n, axis in (("w", 2), ("cotangent", 1))}


def _more_rows(case: Case) -> dict[str, np.ndarray]:
    rows = np.concatenate([_mirrored(own, 0) for own in groups(case)])
    found = {name: case.arrays[name][rows] for name in ("x", "cotangent") if case.has(name)}
    return found | {"group_sizes": case.arrays["group_sizes"] * 2}


def _more_experts(case: Case) -> dict[str, np.ndarray]:
    """The rows belong to experts that there are no more in the call that follows."""
    sizes = case.arrays["group_sizes"]
    twice = np.concatenate([np.zeros_like(sizes), sizes])
    return {"w": _mirrored(case.arrays["w"], 0), "group_sizes": twice}


def _mirrored(array: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate([array, np.flip(array, axis)], axis)


def _check(id: str, op: str, method: Method) -> Check:
    subject, gradient = _SUBJECTS[op], method == "vjp"
    draw: Any = _drawn if gradient else values_of(_drawn)
    return Check(
        id=id,
        op=op,
        statement=f"{'Gradients' if gradient else 'Results'} are right after calls with more "
        "columns, rows and experts.",
        formula="f(a), f(wider), f(a), f(longer), f(a)",
        kind="gradient" if gradient else "rounding",
        method=method,
        cases=known_dtypes(draw) if op == "grouped_matmul_mx" else draw,
        judge=each_of(subject.judge_gradients if gradient else subject.judge, _calls),
        related=_calls,
        may_refuse=True,
    )


CHECKS = (
    _check("GRP-76", "grouped_matmul", "value"),
    _check("GRP-77", "grouped_matmul", "vjp"),
    _check("MXG-86", "grouped_matmul_mx", "value"),
    _check("MXG-87", "grouped_matmul_mx", "vjp"),
)
