"""Judge an implementation."""

import dataclasses
import os
import pathlib
import re
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from moe_ref._errors import require, require_choice
from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance._checks import checks
from moe_ref.conformance._form import malformed
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._result import Judgement, Report, Result
from moe_ref.conformance._shrink import shrink
from moe_ref.conformance._worker import Outcome, Runner

Progress = Callable[[int, int, str], None]


def run(
    implementation: Implementation | Callable[..., Any],
    *,
    op: str | None = None,
    only: Collection[str] = (),
    budget: Budget = "smoke",
    seed: int = 0,
    time_limit: float | int = 120,
    save: str | os.PathLike | None = None,
    shrink_seconds: float | int = 15,
    progress: Progress | None = None,
) -> Report:
    """Run every check of the implementation's operation.

    Args:
        implementation: what is judged; a bare callable is accepted with `op`.
        op: the operation of a bare callable.
        only: ids of the checks to run; empty: all of the operation.
        budget: `smoke` (under a minute for most) or `thorough`.
        seed: of the random inputs.
        time_limit: seconds one call may take, compilation included; beyond it the check fails.
        save: folder for the inputs of failed checks; None: they are in the report only.
        shrink_seconds: time to spend on making a failing input small; 0: leave it as it is.
        progress: called with (checks done, checks in all, what comes next).

    Returns:
        The report. A crash, a hang or an exception of the kernel is a failed check; a kernel that
        cannot be imported by name runs in this process, where a crash or a hang is not caught.

    Raises:
        ValueError: an unknown operation, check or budget.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import conformance

        def zeros(x, w, group_sizes):
            return jnp.zeros((x.shape[0], w.shape[2]), x.dtype)

        report = conformance.run(zeros, op="grouped_matmul")
        assert not report.ok
        ```
    """
    if not isinstance(implementation, Implementation):
        if op is None or not callable(implementation):
            raise ValueError(
                "`implementation` must be an Implementation, or a callable together with `op`; "
                f"got {implementation!r}, op={op!r}."
            )
        name = getattr(implementation, "__name__", repr(implementation))
        implementation = Implementation(name=name, op=op, function=implementation)
    require_choice(budget, "budget", ("smoke", "thorough"))
    require(time_limit > 0, "time_limit", "positive", time_limit)
    chosen = checks(implementation.op)
    for wanted in only:
        require_choice(wanted, "only", [check.id for check in chosen])
    chosen = tuple(check for check in chosen if not only or check.id in only)
    options = _Options(budget=budget, seed=seed, save=save, shrink_seconds=shrink_seconds)
    runner = Runner(implementation, time_limit=time_limit)
    results = []
    try:
        for number, check in enumerate(chosen):
            if progress is not None:
                progress(number, len(chosen), f"{implementation.name} {check.id}")
            results.append(_run_check(runner, implementation, check, options))
        if progress is not None:
            progress(len(chosen), len(chosen), implementation.name)
    finally:
        runner.close()
    return Report(tuple(results))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    budget: Budget
    seed: int
    save: str | os.PathLike | None
    shrink_seconds: float | int


def _run_check(
    runner: Runner, implementation: Implementation, check: Check, options: _Options
) -> Result:
    start = time.monotonic()
    found: list[Judgement] = []
    refusals: list[str] = []
    cases = 0

    def result(status, **fields) -> Result:
        return Result(
            implementation=implementation.name,
            id=check.id,
            op=check.op,
            statement=check.statement,
            status=status,
            cases=cases,
            seconds=time.monotonic() - start,
            **fields,
        )

    if check.needs is not None and not getattr(implementation, check.needs):
        return result("skipped", detail=f"{check.needs} is not declared")
    if check.method == "vjp" and implementation.gradients is False:
        return result("skipped", detail="gradients are declared absent")
    for dtype in implementation.dtypes:
        rng = np.random.default_rng([options.seed, *check.id.encode()])
        for case in check.cases(rng, dtype, options.budget):
            cases += 1
            outcome = runner.call(check.method, case)
            optional = check.may_refuse or (check.method == "vjp" and not implementation.gradients)
            if outcome.refused is not None and implementation.may_decline and optional:
                refusals.append(outcome.refused)
                continue
            judgement = _judge(check, case, outcome)
            found.append(judgement)
            if judgement.status == "fail":
                if outcome.outputs is not None:
                    case = _smallest(runner, check, case, options.shrink_seconds)
                return result(
                    "fail",
                    ratio=judgement.ratio,
                    detail=judgement.detail,
                    proven=judgement.proven,
                    counterexample=case.as_python(),
                    saved=_save(case, f"{implementation.name}-{check.id}", options.save),
                )
    if refusals and check.method == "vjp" and found:
        reason = f"some gradients are refused, some are not: {refusals[0]}"
        return result("fail", detail=reason, proven=True)
    if not found:
        reason = f"declined: {refusals[0]}" if refusals else "no inputs for these dtypes"
        return result("skipped", detail=reason)
    unsure = [j for j in found if j.status == "cannot tell"]
    worst = max((j.ratio for j in found if j.ratio is not None), default=None)
    detail = unsure[0].detail if unsure else ""
    if refusals and not unsure:
        detail = f"declined {len(refusals)} of {cases} inputs: {refusals[0]}"
    return result("cannot tell" if unsure else "pass", ratio=worst, detail=detail)


def _judge(check: Check, case: Case, outcome: Outcome) -> Judgement:
    if outcome.outputs is None:
        reason = outcome.broken or f"declined: {outcome.refused}"
        return _about(case, Judgement(status="fail", detail=reason, proven=True))
    form = malformed(check.op, case, outcome.outputs)
    if form is not None:
        return _about(case, Judgement(status="fail", detail=form, proven=True))
    judgement = check.judge(case, outcome.outputs)
    return judgement if judgement.status == "pass" else _about(case, judgement)


def _about(case: Case, judgement: Judgement) -> Judgement:
    detail = f"{case.label}, {case.dtype}: {judgement.detail}"
    return dataclasses.replace(judgement, detail=detail)


def _smallest(runner: Runner, check: Check, case: Case, seconds: float | int) -> Case:
    def fails(smaller: Case) -> bool:
        outcome = runner.call(check.method, smaller)
        return outcome.outputs is not None and _judge(check, smaller, outcome).status == "fail"

    return shrink(case, fails, seconds=seconds) if seconds > 0 else case


def _save(case: Case, name: str, folder: str | os.PathLike | None) -> str | None:
    if folder is None:
        return None
    place = pathlib.Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", name)
    (place / f"{stem}.txt").write_text(case.as_python() + "\n", encoding="utf-8")
    # npz knows no bfloat16; float32 holds the same numbers.
    flat = {
        k: v.astype(np.float32) if v.dtype.name == "bfloat16" else v
        for k, v in leaves(case.arrays).items()
    }
    np.savez(place / f"{stem}.npz", **flat)
    return str(place / f"{stem}.npz")
