"""How results of `losses` are judged."""

from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs

NAMES = ("balance loss", "z loss")


def truth(case: Case) -> oracle.LossesResult:
    """What the oracle says."""
    arrays = case.arrays
    return oracle.losses(
        arrays["logits"],
        arrays["experts"],
        case.spec.router,
        mask=arrays.get("mask"),
        numerics=case.numerics,
    )


def judge_losses(case: Case, outputs: Outputs) -> Judgement:
    """Both losses within their bounds."""
    return within(outputs["losses"], truth(case).losses, where=lambda place: NAMES[place[0]])


def judge_load(case: Case, outputs: Outputs) -> Judgement:
    """Every count."""
    load = oracle.expert_load(
        case.arrays["experts"], case.spec.router, mask=case.arrays.get("mask")
    )
    return equal(outputs["load"], load, where=lambda place: f"load of expert {place[0]}")


def judge_step(case: Case, outputs: Outputs) -> Judgement:
    """Every sign."""
    return equal(
        outputs["step"], truth(case).step, where=lambda place: f"step of expert {place[0]}"
    )


def judge_nothing(case: Case, outputs: Outputs) -> Judgement:
    """Everything that is reported is exactly 0."""

    def zero(name):
        return equal(outputs[name], np.zeros_like(outputs[name]), where=lambda p: f"{name} {p[0]}")

    return all_of(*(zero(name) for name in outputs))


def judge_gradient(case: Case, outputs: Outputs) -> Judgement:
    """The gradient of the logits, exactly 0 for padding."""
    arrays = case.arrays
    expected = oracle.losses_vjp(
        arrays["logits"],
        arrays["experts"],
        case.spec.router,
        arrays["cotangent"],
        mask=arrays.get("mask"),
        numerics=case.numerics,
    )

    def where(place):
        return f"gradient of token {place[0]}, expert {place[1]}"

    return within(outputs["grad.logits"], expected, where=where, whole=True)


def judge_still(case: Case, outputs: Outputs) -> Judgement:
    """The same where the right gradient is 0: zeros are no sign of deafness."""
    judgement = judge_gradient(case, outputs)
    if judgement.status != "cannot tell":
        return judgement
    return Judgement(status="pass", ratio=judgement.ratio, ratios=judgement.ratios)


def losses_check(
    number: int, statement: str, cases: Any, judge: Any = judge_losses, **options: Any
) -> Check:
    """A check of `losses`, by default of both values."""
    fields: dict[str, Any] = {
        "kind": "rounding",
        "formula": "E sum_e n_e / (T k) mean_t p_te; mean_t (log sum_e exp l_te)^2",
    } | options
    return Check(
        id=f"LOS-{number:02d}", op="losses", statement=statement, cases=cases, judge=judge, **fields
    )
