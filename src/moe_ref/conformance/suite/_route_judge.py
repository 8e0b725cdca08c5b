"""How results of `route` are judged."""

from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, failed, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs


def truth(case: Case, experts: np.ndarray | None = None) -> oracle.RouteResult:
    """What the oracle says: by its own choice, or under the kernel's."""
    arrays = case.arrays
    return oracle.route(
        arrays["logits"],
        case.spec.router,
        bias=arrays.get("bias"),
        mask=arrays.get("mask"),
        experts=experts,
        numerics=case.numerics,
    )


def slot(place: tuple[int, ...]) -> str:
    """Name a slot."""
    return f"token {place[0]}, slot {place[1]}"


def judge_route(case: Case, outputs: Outputs) -> Judgement:
    """The chosen sets up to ambiguity, then the weights under the kernel's own choice."""
    chosen = judge_choice(case, outputs)
    return chosen if chosen.status == "fail" else judge_weights(case, outputs)


def judge_choice(case: Case, outputs: Outputs, rows: np.ndarray | None = None) -> Judgement:
    """Sets that correct rounding may choose; of equal scores, any."""
    expected = truth(case)
    acceptable = oracle.acceptable(expected, outputs["experts"])
    acceptable = acceptable if rows is None else acceptable | ~rows
    if acceptable.all():
        return Judgement(status="pass")
    token = int(np.argmin(acceptable))
    got, want = outputs["experts"][token].tolist(), expected.experts[token].tolist()
    return failed(f"token {token}: experts {got}, expected {want}")


def judge_weights(case: Case, outputs: Outputs, rows: np.ndarray | None = None) -> Judgement:
    """The weights under the kernel's own choice."""
    expected = truth(case, experts=outputs["experts"]).weights
    return within(outputs["weights"], expected, where=slot, rows=rows)


def judge_ties(case: Case, outputs: Outputs) -> Judgement:
    """Exact ties: the same ids as the oracle's, in any order of the slots."""
    chosen = equal(
        np.sort(outputs["experts"], axis=1),
        np.sort(truth(case).experts, axis=1),
        where=lambda place: f"token {place[0]}",
    )
    return chosen if chosen.status == "fail" else judge_weights(case, outputs)


def judge_valid(case: Case, outputs: Outputs) -> Judgement:
    """Whatever the logits hold, ids are distinct and in range; finite rows are as ever."""
    experts = outputs["experts"]
    choices = case.arrays["logits"].shape[1]
    for token, ids in enumerate(experts.tolist()):
        if len(set(ids)) < len(ids) or min(ids) < 0 or max(ids) >= choices:
            return failed(f"token {token}: experts {ids}")
    finite = finite_rows(case, "logits")
    return all_of(judge_choice(case, outputs, finite), judge_weights(case, outputs, finite))


def finite_rows(case: Case, *names: str) -> np.ndarray:
    """Tokens without NaN or Inf."""
    found = [np.isfinite(case.arrays[n].astype(np.float64)).all(axis=1) for n in names]
    return np.logical_and.reduce(found)


def judge_finite(case: Case, outputs: Outputs) -> Judgement:
    """Weights and gradient are finite."""
    for name in ("weights", "grad.logits"):
        bad = ~np.isfinite(outputs[name].astype(np.float64))
        if bad.any():
            token = int(np.argmax(bad.any(axis=1)))
            return failed(f"token {token}: {name} {outputs[name][token]}")
    return Judgement(status="pass")


def judge_gradient(case: Case, outputs: Outputs) -> Judgement:
    """The gradient under the kernel's own choice; that of the selection bias is zero."""
    return all_of(judge_logits_gradient(case, outputs), _judge_bias_gradient(outputs))


def judge_logits_gradient(
    case: Case, outputs: Outputs, rows: np.ndarray | None = None
) -> Judgement:
    """The gradient of the logits under the kernel's own choice."""
    arrays = case.arrays
    expected = oracle.route_vjp(
        arrays["logits"],
        case.spec.router,
        arrays["cotangent"],
        bias=arrays.get("bias"),
        mask=arrays.get("mask"),
        experts=outputs["experts"],
        numerics=case.numerics,
    )

    def where(place):
        return f"gradient of token {place[0]}, expert {place[1]}"

    return within(outputs["grad.logits"], expected, where=where, rows=rows, whole=True)


def _judge_bias_gradient(outputs: Outputs) -> Judgement:
    if "grad.bias" not in outputs:
        return Judgement(status="pass")
    zero = np.zeros_like(outputs["grad.bias"])
    return equal(outputs["grad.bias"], zero, where=lambda place: f"gradient of bias {place[0]}")


def judge_both(case: Case, outputs: Outputs) -> Judgement:
    """Choice, weights and gradient."""
    return all_of(judge_route(case, outputs), judge_gradient(case, outputs))


def route_check(
    number: int, statement: str, cases: Any, judge: Any = judge_route, **options: Any
) -> Check:
    """A check of `route`, by default of choice and weights."""
    fields: dict[str, Any] = {
        "kind": "rounding",
        "formula": "top_k(s + b); w = scale * renormalize(s[ids])",
    } | options
    return Check(
        id=f"RTE-{number:02d}", op="route", statement=statement, cases=cases, judge=judge, **fields
    )
