"""Checks of `grouped_matmul`: laws between calls, which hold whatever the oracle says.

Where a row of one call is the same as a row of another, so is its result: within both their bounds,
or to the bit where `batch_invariant` is declared.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Method, Outputs
from moe_ref.conformance.suite._grouped_cases import (
    based,
    belongs,
    gradients_of,
    truth_of,
    where_row,
    where_weight,
    with_cotangent,
)
from moe_ref.conformance.suite._grouped_gradients import NO_GRADIENT, gradient_names


@dataclasses.dataclass(frozen=True)
class Move:
    """Another call with rows and experts of a case.

    Attributes:
        rows: which row of the case each row is.
        experts: which expert of the case each expert is.
        sizes: rows of each expert.
    """

    rows: np.ndarray
    experts: np.ndarray
    sizes: np.ndarray

    def of(self, case: Case) -> Case:
        """The input of that call."""
        arrays = case.arrays
        moved = {name: arrays[name][self.rows] for name in ("x", "cotangent") if name in arrays}
        sizes = self.sizes.astype(arrays["group_sizes"].dtype)
        return case.replace(w=arrays["w"][self.experts], group_sizes=sizes, **moved)


Law = Callable[[Case], Mapping[str, Move]]


def groups(case: Case) -> list[np.ndarray]:
    """Rows of each expert, and last those of none."""
    ends = np.cumsum(case.arrays["group_sizes"].astype(np.int64))
    return np.split(np.arange(len(case.arrays["x"])), ends)


def _all_experts(case: Case) -> np.ndarray:
    return np.arange(len(case.arrays["w"]))


def relabelled(case: Case) -> dict[str, Move]:
    """The last expert first."""
    *own, tail = groups(case)
    rows = np.concatenate([*own[::-1], tail])
    experts = _all_experts(case)[::-1]
    return {"relabelled": Move(rows, experts, case.arrays["group_sizes"][experts])}


def _split(case: Case) -> dict[str, Move]:
    *own, _ = groups(case)
    sizes, experts = case.arrays["group_sizes"], _all_experts(case)
    first = experts <= len(experts) // 2
    return {
        name: Move(
            np.concatenate([own[e] for e in experts[chosen]]),
            experts,
            np.where(chosen, sizes, 0),
        )
        for name, chosen in {"first": first, "second": ~first}.items()
        if chosen.any()
    }


def _unused(case: Case) -> dict[str, Move]:
    experts = np.append(-1, _all_experts(case)) % len(case.arrays["w"])
    rows = np.arange(len(case.arrays["x"]))
    return {"unused": Move(rows, experts, np.append(0, case.arrays["group_sizes"]))}


def permuted(case: Case) -> dict[str, Move]:
    """The last row of each group first."""
    *own, tail = groups(case)
    rows = np.concatenate([*(group[::-1] for group in own), tail])
    return {"permuted": Move(rows, _all_experts(case), case.arrays["group_sizes"])}


def _repeated(case: Case) -> dict[str, Move]:
    """The first row of each group in the place of its last."""
    rows = np.arange(len(case.arrays["x"]))
    for group in groups(case)[:-1]:
        rows[group[-1:]] = group[:1]
    return {"repeated": Move(rows, _all_experts(case), case.arrays["group_sizes"])}


def _every(case: Case) -> dict[str, Move]:
    laws = (relabelled, _split, _unused, permuted, _repeated)
    return {name: move for law in laws for name, move in law(case).items()}


def calls(case: Case, *, law: Law) -> dict[str, Case]:
    """The inputs of the calls of a law."""
    return {name: move.of(case) for name, move in law(case).items()}


def _near(actual: np.ndarray, expected: np.ndarray, truth: oracle.Value, **options) -> Judgement:
    """Two results whose bounds are both those of `truth`."""
    other = expected.astype(np.float64)
    limits = {"bound": 2 * truth.bound, "worst": 2 * truth.worst}
    return within(actual, dataclasses.replace(truth, value=other, **limits), **options)


def _judge_rows(case: Case, outputs: Outputs, *, law: Law) -> Judgement:
    return all_of(*moved_rows(case, outputs, law, "y", truth_of(case)))


def moved_rows(
    case: Case, outputs: Outputs, law: Law, name: str, truth: oracle.Value
) -> Iterator[Judgement]:
    """Rows of a result of the calls of a law, beside those of the case."""
    for call, move in law(case).items():
        other = move.of(case)
        actual, expected = outputs[f"{call}.{name}"], outputs[name][move.rows]
        rows, where = belongs(other), where_row(other)
        yield _near(actual, expected, truth[move.rows], rows=rows, where=where)


def moved_weights(
    case: Case, outputs: Outputs, law: Law, truth: oracle.Value
) -> Iterator[Judgement]:
    """Gradients of w of the calls of a law, beside those of the case."""
    for call, move in law(case).items():
        used = (move.sizes > 0)[:, None, None]
        expected = np.where(used, outputs["grad.w"][move.experts], 0)
        limits = truth[move.experts].map(lambda array, used=used: np.where(used, array, 0))
        yield _near(outputs[f"{call}.grad.w"], expected, limits, where=where_weight)


def _judge_gradients(case: Case, outputs: Outputs, *, law: Law) -> Judgement:
    truth, names = gradients_of(case), gradient_names(outputs)
    judged = list(moved_rows(case, outputs, law, "grad.x", truth.x)) if "grad.x" in names else []
    if "grad.w" in names and law is not _repeated:  # which changes the sum
        judged += moved_weights(case, outputs, law, truth.w)
    return all_of(*judged) if judged else NO_GRADIENT


def _judge_bits(case: Case, outputs: Outputs, *, name: str) -> Judgement:
    judged = []
    for call, move in _every(case).items():
        other = move.of(case)
        rows = belongs(other)
        actual, expected = outputs[f"{call}.{name}"][rows], outputs[name][move.rows][rows]
        judged.append(equal(actual, expected, where=where_row(other)))
    return all_of(*judged)


def _draw(rng, dtype, budget) -> Iterator[Case]:
    yield with_cotangent(rng, based(rng, "groups of all sizes", dtype))


_SAME = "the same row and weight: |y - y'| <= bound + bound'"
_LAWS: tuple[tuple[Law, str, int, int], ...] = (
    (relabelled, "Relabelling the experts together with their groups moves {} along.", 20, 53),
    (_split, "A batch in two calls gives {} of one call.", 21, 54),
    (_unused, "An expert that no row uses changes none of {}.", 22, 55),
    (_repeated, "Equal rows of a group have equal {}.", 23, 64),
    (permuted, "Permuting the rows of a group permutes {}.", 24, 56),
)


def _check(number: int, statement: str, law: Law, judge, method: Method, **options: Any) -> Check:
    fields: dict[str, Any] = {"formula": _SAME} | options
    return Check(
        id=f"GRP-{number}",
        op="grouped_matmul",
        statement=statement,
        kind="metamorphic",
        cases=_draw,
        judge=judge,
        method=method,
        related=functools.partial(calls, law=law),
        may_refuse=True,  # the calls have other sizes than the case
        **fields,
    )


CHECKS = (
    *(
        _check(n, said.format("results"), law, functools.partial(_judge_rows, law=law), "value")
        for law, said, n, _ in _LAWS
    ),
    _check(
        25,
        "The bits of a row's result depend on that row and its weight only.",
        _every,
        functools.partial(_judge_bits, name="y"),
        "value",
        formula="y = y'",
        needs="batch_invariant",
    ),
    *(
        _check(
            n, said.format("gradients"), law, functools.partial(_judge_gradients, law=law), "vjp"
        )
        for law, said, _, n in _LAWS
    ),
    _check(
        63,
        "The bits of a row's gradient depend on that row, its cotangent and its weight only.",
        _every,
        functools.partial(_judge_bits, name="grad.x"),
        "vjp",
        formula="dx = dx'",
        needs="batch_invariant",
        wants=("grad.x",),
    ),
)
