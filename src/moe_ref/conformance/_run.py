"""Judge an implementation."""

import os
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from moe_ref._errors import require, require_choice
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance._gather import calls
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._journal import Journal
from moe_ref.conformance._result import Report, Result
from moe_ref.conformance._saved import load_case
from moe_ref.conformance._trial import Trial
from moe_ref.conformance._worker import Runner
from moe_ref.conformance.suite._all import checks

Progress = Callable[[int, int, str], None]


def run(
    implementation: Implementation | Callable[..., Any],
    *,
    op: str | None = None,
    only: Collection[str] = (),
    budget: Budget = "smoke",
    seed: int = 0,
    time_limit: float | int = 120,
    memory_limit: int = 2**34,
    save: str | os.PathLike | None = None,
    resume: str | os.PathLike | None = None,
    shrink_seconds: float | int = 15,
    isolate: bool = True,
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
        memory_limit: bytes the kernel's process may add to what it starts with (on Linux).
        save: folder for the inputs of failed checks; None: they are in the report only.
        resume: file that keeps every result as soon as it is there; those it holds already, of the
            same seed and budget, are taken over.
        shrink_seconds: time to spend on making a failing input small; 0: leave it as it is.
        isolate: run the kernel in a process of its own.
        progress: called with (checks done, checks in all, what comes next), before and after
            each; an exception it raises ends the run, and the last result is not kept.

    Returns:
        The report. A crash, a hang or an exception of the kernel is a failed check; a kernel that
        cannot be imported by name runs in this process, where a crash or a hang is not caught.

    Raises:
        ValueError: an unknown operation, check or budget; `resume` is a file of something else.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import conformance

        def zeros(x, w, group_sizes):
            return jnp.zeros((x.shape[0], w.shape[2]), x.dtype)

        report = conformance.run(zeros, op="grouped_matmul", only=["GRP-02"])
        assert not report.ok
        ```
    """
    implementation = as_implementation(implementation, op)
    require_choice(budget, "budget", ("smoke", "thorough"))
    for name, limit in (("time_limit", time_limit), ("memory_limit", memory_limit)):
        number = isinstance(limit, (int, float)) and limit > 0
        require(number, name, "a positive number", repr(limit))
    require(isinstance(seed, int) and seed >= 0, "seed", "an integer, 0 or more", repr(seed))
    chosen = chosen_checks(implementation.op, only)
    journal = None if resume is None else Journal(resume, seed=seed, budget=budget)
    runner = Runner(
        implementation, time_limit=time_limit, memory_limit=memory_limit, isolate=isolate
    )
    trial = Trial(implementation, calls(runner), save=save, shrink_seconds=shrink_seconds)
    results = []
    try:
        for number, check in enumerate(chosen):
            if progress is not None:
                progress(number, len(chosen), f"{implementation.name} {check.id}")
            known = None if journal is None else journal.find(implementation.name, check.id)
            result = known or trial.of(check, inputs(implementation, check, budget, seed))
            if progress is not None:
                # Before it is kept: `progress` may end the run, whose kernel was ended then too.
                progress(number + 1, len(chosen), implementation.name)
            if journal is not None and known is None:
                journal.add(result)
            results.append(result)
    finally:
        runner.close()
    return Report(tuple(results))


def replay(
    implementation: Implementation | Callable[..., Any],
    path: str | os.PathLike,
    *,
    time_limit: float | int = 120,
    memory_limit: int = 2**34,
    isolate: bool = True,
) -> Result:
    """Try a saved failure again.

    Args:
        implementation: what is judged; a bare callable is taken for the saved operation.
        path: an .npz that `run(save=...)` wrote.
        time_limit: seconds the call may take.
        memory_limit: bytes the kernel's process may add to what it starts with (on Linux).
        isolate: run the kernel in a process of its own.

    Returns:
        The result of that one check on that one input.

    Raises:
        ValueError: no saved failure, or one of another operation.
    """
    saved = load_case(path)
    implementation = as_implementation(implementation, saved.op)
    require(implementation.op == saved.op, "implementation", f"a {saved.op}", implementation.op)
    (check,) = chosen_checks(saved.op, [saved.check])
    runner = Runner(
        implementation, time_limit=time_limit, memory_limit=memory_limit, isolate=isolate
    )
    try:
        trial = Trial(implementation, calls(runner), save=None, shrink_seconds=0)
        return trial.of(check, [saved.case])
    finally:
        runner.close()


def inputs(implementation: Implementation, check: Check, budget: Budget, seed: int) -> list[Case]:
    """The cases of a check for every dtype, as the implementation can take them."""
    found = []
    for dtype in implementation.dtypes:
        rng = np.random.default_rng([seed, *check.id.encode()])
        drawn = [
            case
            for case in check.cases(rng, dtype, budget)
            if dtype == implementation.dtypes[0] or not case.once
        ]
        fitted = (implementation.fitted(case) for case in drawn)
        found += [case for case in fitted if case is not None]
    return found


def as_implementation(
    implementation: Implementation | Callable[..., Any], op: str | None
) -> Implementation:
    """A bare callable with the capabilities that one has."""
    if isinstance(implementation, Implementation):
        return implementation
    if op is None or not callable(implementation):
        raise ValueError(
            "`implementation` must be an Implementation, or a callable together with `op`; "
            f"got {implementation!r}, op={op!r}."
        )
    name = getattr(implementation, "__name__", repr(implementation))
    return Implementation(name=name, op=op, function=implementation)


def chosen_checks(op: str, only: Collection[str]) -> tuple[Check, ...]:
    """The checks of an operation, or those of them that are named."""
    found = checks(op)
    require(not isinstance(only, str), "only", "a collection of ids", f"the string {only!r}")
    for wanted in only:
        require_choice(wanted, "only", [check.id for check in found])
    return tuple(check for check in found if not only or check.id in only)
