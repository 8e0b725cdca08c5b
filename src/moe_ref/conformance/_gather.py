"""What came of a case and of those that follow from it, as one."""

from collections.abc import Callable

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._form import malformed
from moe_ref.conformance._worker import Outcome, Runner
from moe_ref.conformance.operations import Outputs

Source = Callable[[Check, Case], Outcome]


def gather(check: Check, case: Case, give: Callable[[str, Case], Outcome]) -> Outcome:
    """Join the outcomes of a case and of its related ones.

    Args:
        check: what they are for.
        case: the input.
        give: the outcome of one input, from its name among the related ones ("" for `case`).

    Returns:
        The results, those of the related input `NAME` called `NAME.y` and so on; or the first
        outcome that has none.
    """
    outcome = give("", case)
    if outcome.outputs is None or check.related is None:
        return outcome
    outputs = dict(outcome.outputs)
    for name, other in check.related(case).items():
        more = give(name, other)
        if more.outputs is None:
            return more
        wrong = malformed(check.op, other, more.outputs)
        if wrong is not None:
            return Outcome(broken=f"{name}: {wrong}")
        outputs |= {f"{name}.{k}": v for k, v in more.outputs.items()}
    return Outcome(outputs=outputs)


def results_of(name: str, outputs: Outputs) -> Outputs:
    """The results for the related input of this name, by their own names; "": for the case."""
    if not name:
        return {n: a for n, a in outputs.items() if "." not in n or n.startswith("grad.")}
    prefix = f"{name}."
    return {n.removeprefix(prefix): a for n, a in outputs.items() if n.startswith(prefix)}


def calls(runner: Runner) -> Source:
    """Outcomes from calling a kernel, in the manner of the case."""

    def outcome(check: Check, case: Case) -> Outcome:
        if case.manner not in ("together", "reused") or check.related is None:
            return gather(check, case, lambda _, given: runner.call(check.method, {"": given})[""])
        found = runner.call(check.method, {"": case, **check.related(case)})
        return gather(check, case, lambda name, _: found[name])

    return outcome
