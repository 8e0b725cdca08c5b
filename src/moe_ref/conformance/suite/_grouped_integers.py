"""Checks of both grouped matmuls: the integer type of the group sizes.

Offsets are sums of sizes, which a narrow type does not hold, and sizes of 64 bits lie otherwise in
memory than those of 32.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Method, Outputs
from moe_ref.conformance.suite._calls_cases import SUBJECTS, Judge
from moe_ref.conformance.suite._grouped_mx_cases import operands, values_of
from moe_ref.conformance.suite._grouped_mx_values import known_dtypes
from moe_ref.conformance.suite._grouped_values import judge_form

Sizes = dict[str, tuple[int, ...]]  # by type

# Sizes that a type holds, but not their sum; uint32 and what is wider holds any.
_BYTES: Sizes = {"int8": (100, 90), "uint8": (200, 100)}
_SHORT: Sizes = {"int16": (20001, 19999, 1), "uint16": (40001, 29999, 1)}
_WIDE: Sizes = dict.fromkeys(("uint32", "int64", "uint64"), (200, 100))
# In a smoke run, where each is another compilation, of seconds with a gradient.
_FEW = {
    ("grouped_matmul", "vjp"): ("uint8", "uint16", "int64"),
    ("grouped_matmul_mx", "value"): ("uint8", "int16", "int64"),
    ("grouped_matmul_mx", "vjp"): ("uint8", "int64"),
}
# No sum of a gradient is so long that narrow accumulators lose it.
_SHORT_GROUPS: Sizes = {"int16": (2008,) * 20, "uint16": (2008,) * 35}
_SUBJECTS = {subject.op: subject for subject in SUBJECTS}


def _cases(op: str, method: Method, sizes: Sizes):
    """Inputs with sizes of each type; all operands are positive, so that long sums are heard."""

    def drawn(rng, dtype, budget) -> Iterator[Case]:
        few = _FEW.get((op, method), sizes) if budget == "smoke" else sizes
        for kind, counts in sizes.items():
            if kind not in few:
                continue
            tail = 110 if kind == "int8" else 0
            side = 32 if sum(counts) < 1000 else 8  # a whole block, unless there is much of it
            case = operands(rng, f"{kind} sizes", dtype, counts, tail=tail, k=side, n=side)
            found = {name: np.abs(case.arrays[name]) for name in ("x", "w", "cotangent")}
            case = case.replace(**found, group_sizes=np.array(counts, kind))
            yield dataclasses.replace(case, once=True)

    return drawn


def _with_form(judge: Judge) -> Judge:
    def judged(case: Case, outputs: Outputs) -> Judgement:
        return all_of(judge_form(case, outputs), judge(case, outputs))

    return judged


def _check(
    id: str,
    op: str,
    statement: str,
    sizes: Sizes,
    *,
    formula: str,
    method: Method = "value",
) -> Check:
    gradient = method == "vjp"
    subject, draw = _SUBJECTS[op], _cases(op, method, sizes)
    judge = subject.judge_gradients if gradient else _with_form(subject.judge)
    if not gradient:
        draw = values_of(draw)
    return Check(
        id=id,
        op=op,
        statement=statement,
        formula=formula,
        kind="gradient" if gradient else "rounding",
        method=method,
        cases=known_dtypes(draw) if op == "grouped_matmul_mx" else draw,
        judge=judge,
        may_refuse=True,
    )


_ROWS = "y[r] = x[r] @ w[e(r)], r < sum(group_sizes)"
_GRADIENTS: dict[str, Any] = {
    "statement": "Gradients are right for group sizes of any integer type.",
    "sizes": _BYTES | _SHORT_GROUPS | _WIDE,
    "formula": "dx[r] = dy[r] @ w[e(r)]^T, dw[e] = x_e^T @ dy_e",
    "method": "vjp",
}

CHECKS = (
    _check(
        "GRP-14",
        "grouped_matmul",
        "Group sizes of a narrow integer type do not overflow.",
        _BYTES | _SHORT,
        formula=_ROWS,
    ),
    _check(
        "GRP-29",
        "grouped_matmul",
        "Group sizes of 64 bits, or without a sign, change neither the values nor the form of the "
        "result.",
        _WIDE,
        formula=_ROWS,
    ),
    _check("GRP-72", "grouped_matmul", **_GRADIENTS),
    _check(
        "MXG-83",
        "grouped_matmul_mx",
        "Group sizes of any integer type change neither the values nor the form of the result.",
        _BYTES | _SHORT | _WIDE,
        formula=_ROWS,
    ),
    _check("MXG-84", "grouped_matmul_mx", **_GRADIENTS),
)
