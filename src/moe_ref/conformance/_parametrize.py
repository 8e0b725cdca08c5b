"""Checks as pytest tests, in the suite of whoever wrote the kernel. Imports pytest when called."""

import atexit
import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from moe_ref._errors import require_choice
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance._gather import calls
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._result import Result
from moe_ref.conformance._run import as_implementation, chosen_checks, inputs
from moe_ref.conformance._trial import Trial
from moe_ref.conformance._worker import Runner
from moe_ref.conformance._xfails import read_xfails, require_known

_TIME_LIMIT, _SHRINK_SECONDS = 120, 15


def parametrize(
    implementation: Implementation | Callable[..., Any],
    *,
    op: str | None = None,
    only: Collection[str] = (),
    xfails: Mapping[str, str] | str | os.PathLike | None = None,
    budget: Budget = "smoke",
    seed: int = 0,
) -> Any:
    """Make a pytest test of every check, to be called `check` by the function that is decorated.

    Args:
        implementation: what is judged; a bare callable is accepted with `op`. Its process is kept
            for all checks.
        op: the operation of a bare callable.
        only: ids of the checks; empty: all of the operation.
        xfails: checks that are known to fail: reason by id, or a file that has an id and a reason
            a line. One that holds all the same is a failure.
        budget: `smoke` or `thorough`.
        seed: of the random inputs.

    Returns:
        `pytest.mark.parametrize("check", ...)` with ids like `name-GRP-07`. `check()` fails with
        the claim, what was found and the smallest failing input, or skips with the reason.

    Raises:
        ValueError: an unknown operation, check or budget; a wrong line of `xfails`.

    Example:
        ```python
        from moe_ref import conformance
        from moe_ref.grouped import grouped_matmul

        @conformance.parametrize(grouped_matmul, op="grouped_matmul", only=["GRP-01", "GRP-13"])
        def test_kernel(check):
            check()
        ```
    """
    import pytest

    implementation = as_implementation(implementation, op)
    known = {} if xfails is None else xfails
    if not isinstance(known, Mapping):
        known = read_xfails(known)
    require_known(known, "given")
    found = cases(implementation, only=only, xfails=known, budget=budget, seed=seed)
    return pytest.mark.parametrize("check", found)


def cases(
    implementation: Implementation,
    *,
    only: Collection[str],
    xfails: Mapping[str, str],
    budget: Budget,
    seed: int,
) -> list[Any]:
    """The checks of an implementation as values for `pytest.mark.parametrize`."""
    import pytest

    require_choice(budget, "budget", ("smoke", "thorough"))
    bench = _Bench(implementation, budget=budget, seed=seed)
    found = []
    for check in chosen_checks(implementation.op, only):
        reason = xfails.get(check.id)
        marks = () if reason is None else pytest.mark.xfail(reason=reason, strict=True)
        name = f"{implementation.name}-{check.id}"
        found.append(pytest.param(Claim(check, bench), id=name, marks=marks))
    return found


class _Bench:
    """One implementation, and the process that its checks share."""

    def __init__(self, implementation: Implementation, *, budget: Budget, seed: int):
        self._implementation = implementation
        self._budget: Budget = budget
        self._seed = seed

    @functools.cached_property
    def _trial(self) -> Trial:
        runner = Runner(self._implementation, time_limit=_TIME_LIMIT)
        atexit.register(runner.close)
        return Trial(self._implementation, calls(runner), save=None, shrink_seconds=_SHRINK_SECONDS)

    def judge(self, check: Check) -> Result:
        """Try one check."""
        return self._trial.of(check, inputs(self._implementation, check, self._budget, self._seed))


@dataclasses.dataclass(frozen=True)
class Claim:
    """A check of an implementation that asserts itself when it is called.

    Args:
        check: the check.
        bench: judges it.
    """

    check: Check
    bench: _Bench = dataclasses.field(repr=False)

    def __call__(self) -> None:
        """Pass, fail or skip the running test."""
        import pytest

        result = self.bench.judge(self.check)
        if result.status == "skipped":
            pytest.skip(result.detail)
        if result.status != "pass":
            pytest.fail(message(result), pytrace=False)


def message(result: Result) -> str:
    """What does not hold, what was found, and the smallest input known to show it."""
    lines = [result.statement, f"{result.status}: {result.detail}"]
    if result.counterexample is not None:
        lines += [f"{result.about_counterexample}:", result.counterexample]
    return "\n".join(lines)
