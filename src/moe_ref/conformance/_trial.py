"""One check of one implementation."""

import dataclasses
import os
import time
from collections.abc import Iterable
from typing import Any

from moe_ref._counted import counted
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._form import malformed
from moe_ref.conformance._gather import Source, results_of
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._picture import coarsened, decades, load
from moe_ref.conformance._result import Judgement, Result
from moe_ref.conformance._saved import Saved, save_case
from moe_ref.conformance._shrink import shrink
from moe_ref.conformance._worker import Outcome
from moe_ref.conformance.operations import OPERATIONS, Outputs, moving


@dataclasses.dataclass
class _Found:
    """What the inputs tried so far came to."""

    judgements: list[Judgement] = dataclasses.field(default_factory=list)
    refusals: list[str] = dataclasses.field(default_factory=list)
    cases: int = 0


class Trial:
    """Tries checks on one implementation.

    Args:
        implementation: what is judged.
        outcome: what it gives for an input of a check.
        save: folder for failing inputs, or None.
        shrink_seconds: time for making a failing input small.
    """

    def __init__(
        self,
        implementation: Implementation,
        outcome: Source,
        *,
        save: str | os.PathLike | None,
        shrink_seconds: float | int,
    ):
        self._implementation = implementation
        self._outcome = outcome
        self._save = save
        self._shrink_seconds = shrink_seconds

    def of(self, check: Check, cases: Iterable[Case]) -> Result:
        """The result of a check: its first failure, or what all its inputs came to."""
        start = time.monotonic()
        found = _Found()
        fields = self._skipped(check) or self._tried(check, cases, found)
        return Result(
            implementation=self._implementation.name,
            id=check.id,
            op=check.op,
            statement=check.statement,
            cases=found.cases,
            decades=decades(found.judgements),
            seconds=time.monotonic() - start,
            **fields,
        )

    def _skipped(self, check: Check) -> dict[str, Any] | None:
        mine = self._implementation
        if check.needs is not None and not getattr(mine, check.needs):
            return {"status": "skipped", "detail": f"{check.needs} is not declared"}
        if check.method == "vjp" and mine.gradients is False:
            return {"status": "skipped", "detail": "gradients are declared absent"}
        for name in check.wants:
            if name.startswith("grad.") and not mine.has_gradient(name.removeprefix("grad.")):
                return {"status": "skipped", "detail": f"{name} is declared absent"}
        return None

    def _tried(self, check: Check, cases: Iterable[Case], found: _Found) -> dict[str, Any]:
        optional = check.may_refuse or (
            check.method == "vjp" and not self._implementation.gradients
        )
        for case in cases:
            if not self._takes_related(check, case):
                continue
            found.cases += 1
            outcome = self._outcome(check, case)
            if outcome.refused is not None and self._implementation.may_decline and optional:
                found.refusals.append(outcome.refused)
                continue
            judgement = self._judge(check, case, outcome)
            if judgement is None:
                return _unreported(check, case, found)
            found.judgements.append(judgement)
            if judgement.status == "fail":
                return self._failure(check, case, outcome, judgement)
        return _summary(check, found)

    def _takes_related(self, check: Check, case: Case) -> bool:
        """Whether the kernel is declared to take the inputs that follow from a case."""
        related = {} if check.related is None else check.related(case)
        return all(self._implementation.fitted(other) is not None for other in related.values())

    def _judge(self, check: Check, case: Case, outcome: Outcome) -> Judgement | None:
        if outcome.outputs is None:
            reason = outcome.broken or f"declined: {outcome.refused}"
            return _about(case, Judgement(status="fail", detail=reason, proven=True))
        own = results_of("", outcome.outputs)
        form = malformed(check.op, case, own)
        if form is not None:
            return _about(case, Judgement(status="fail", detail=form, proven=True))
        owed = self._owed(check, case, own)
        if owed is not None:
            said = f"{owed} is missing, and `gradients` does not say that there is none"
            return _about(case, Judgement(status="fail", detail=said, proven=True))
        if any(name not in own for name in check.wants):
            return None
        lost = _lost(check, case, outcome.outputs)
        if lost is not None:
            return _about(case, Judgement(status="fail", detail=lost, proven=True))
        judgement = check.judge(case, outcome.outputs)
        return judgement if judgement.status == "pass" else _about(case, judgement)

    def _owed(self, check: Check, case: Case, own: Outputs) -> str | None:
        """A gradient that the check is about, that is declared, and that was not given."""
        if check.method != "vjp":
            return None
        operation = OPERATIONS[check.op]
        every = [f"grad.{n}" for n in moving(operation, case) if n not in operation.unmoved]
        for name in [n for n in check.wants if n.startswith("grad.")] or every:
            if name not in own and self._implementation.owes_gradient(name.removeprefix("grad.")):
                return name
        return None

    def _failure(
        self, check: Check, case: Case, outcome: Outcome, judgement: Judgement
    ) -> dict[str, Any]:
        heat, rows = coarsened(judgement.ratios), load(case, outcome.outputs)
        first = case
        if outcome.outputs is not None and self._shrink_seconds > 0:
            smaller = OPERATIONS[check.op].smaller
            case = shrink(
                case, lambda c: self._fails(check, c), smaller, seconds=self._shrink_seconds
            )
        saved = None
        if self._save is not None:
            name = self._implementation.name
            about = Saved(check=check.id, op=check.op, implementation=name, case=case)
            saved = save_case(about, self._save)
        return {
            "status": "fail",
            "ratio": judgement.ratio,
            "detail": judgement.detail,
            "proven": judgement.proven,
            "counterexample": case.as_python(),
            "shrunk": case is not first,
            "saved": saved,
            "heat": heat,
            "load": rows,
        }

    def _fails(self, check: Check, case: Case) -> bool:
        outcome = self._outcome(check, case)
        if outcome.outputs is None:
            return False
        judgement = self._judge(check, case, outcome)
        return judgement is not None and judgement.status == "fail"


def _lost(check: Check, case: Case, outputs: Outputs) -> str | None:
    """A result of the first call that a later one should have given, too."""
    own = results_of("", outputs)
    for name, other in (check.related(case) if check.related else {}).items():
        theirs = results_of(name, outputs)
        movable = {f"grad.{n}" for n in moving(OPERATIONS[check.op], other)}
        for each in own:
            if each not in theirs and (each in movable or not each.startswith("grad.")):
                return f"{name}: {each} is missing, which the first call gave"
    return None


def _unreported(check: Check, case: Case, found: _Found) -> dict[str, Any]:
    wanted = check.wants[0]
    if not found.judgements:
        return {"status": "skipped", "detail": f"{wanted} is not reported"}
    reason = f"{case.label}, {case.dtype}: {wanted} is missing, which other inputs gave"
    return {"status": "fail", "detail": reason, "proven": True}


def _about(case: Case, judgement: Judgement) -> Judgement:
    detail = f"{case.label}, {case.dtype}: {judgement.detail}"
    return dataclasses.replace(judgement, detail=detail)


def _summary(check: Check, found: _Found) -> dict[str, Any]:
    judgements, refusals = found.judgements, found.refusals
    if refusals and check.method == "vjp" and judgements and not check.may_refuse:
        reason = f"some gradients are refused, some are not: {refusals[0]}"
        return {"status": "fail", "detail": reason, "proven": True}
    if not judgements:
        reason = f"declined: {refusals[0]}" if refusals else "no inputs it is declared to take"
        return {"status": "skipped", "detail": reason}
    if all(j.status == "skipped" for j in judgements):
        return {"status": "skipped", "detail": judgements[0].detail}
    unsure = [j for j in judgements if j.status == "cannot tell"]
    worst = max((j.ratio for j in judgements if j.ratio is not None), default=None)
    detail = unsure[0].detail if unsure else ""
    if refusals and not unsure:
        detail = f"declined {len(refusals)} of {counted(found.cases, 'input')}: {refusals[0]}"
    status = "cannot tell" if unsure else "pass"
    return {"status": status, "ratio": worst, "detail": detail}
