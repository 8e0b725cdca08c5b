"""Which check notices which mutant."""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from types import MappingProxyType
from typing import Any

from moe_ref.conformance._check import Budget
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._run import run
from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.suite import checks

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix:
    """What checks said about mutants.

    Attributes:
        mutants: the rows.
        status: verdict by (name of the mutant, id of the check).
    """

    mutants: tuple[Mutant, ...]
    status: dict[tuple[str, str], str]

    def killers(self, mutant: Mutant) -> tuple[str, ...]:
        """Ids of the checks that failed for a mutant."""
        ids = [check.id for check in checks(mutant.implementation.op)]
        return tuple(i for i in ids if self.status.get((mutant.name, i)) == "fail")

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """Mutants that no check noticed."""
        return tuple(mutant for mutant in self.mutants if not self.killers(mutant))

    @property
    def missed(self) -> tuple[tuple[Mutant, str], ...]:
        """Mutants that a check made for them did not notice."""
        return tuple(
            (mutant, wanted)
            for mutant in self.mutants
            for wanted in mutant.killers
            if wanted not in self.killers(mutant)
        )

    @property
    def idle(self) -> tuple[str, ...]:
        """Ids of checks, of the operations there are mutants of, that noticed none."""
        used = {check for mutant in self.mutants for check in self.killers(mutant)}
        ops = dict.fromkeys(mutant.implementation.op for mutant in self.mutants)
        return tuple(check.id for op in ops for check in checks(op) if check.id not in used)

    @property
    def ok(self) -> bool:
        """Whether every mutant was noticed, by the checks made for it, and every check was used."""
        return not (self.survivors or self.missed or self.idle)


def matrix(
    mutants: Sequence[Mutant],
    *,
    budget: Budget = "smoke",
    seed: int = 0,
    quick: bool = False,
    at_once: int = 2,
    progress: Progress | None = None,
) -> Matrix:
    """Run every check of its operation on every mutant.

    Args:
        mutants: the wrong implementations.
        budget: of the suite.
        seed: of the random inputs.
        quick: run only the checks that were made for a mutant.
        at_once: number of processes.
        progress: called with the name of each mutant that is done.

    Returns:
        The matrix.
    """
    only = {mutant.name: mutant.killers for mutant in mutants} if quick else {}
    wrong = [mutant.implementation for mutant in mutants]
    found = _judged(wrong, [seed], budget, at_once, progress, only)
    status = {(r.implementation, r.id): r.status for results in found for r in results}
    return Matrix(mutants=tuple(mutants), status=status)


def false_alarms(
    implementations: Sequence[Implementation],
    *,
    seeds: Sequence[int],
    budget: Budget = "smoke",
    at_once: int = 2,
    progress: Progress | None = None,
) -> list[tuple[int, Any]]:
    """What the suite holds against implementations that are right.

    Args:
        implementations: right ones, each in its own legal way.
        seeds: of the random inputs.
        budget: of the suite.
        at_once: number of processes.
        progress: called with the name of each implementation and seed that is done.

    Returns:
        (seed, result) of every check that failed or could not tell.
    """
    found = _judged(implementations, seeds, budget, at_once, progress)
    pairs = [
        (seed, results)
        for results, seed in zip(found, [s for _ in implementations for s in seeds], strict=True)
    ]
    return [(s, r) for s, results in pairs for r in results if r.status in ("fail", "cannot tell")]


def _judged(
    implementations: Sequence[Implementation],
    seeds: Sequence[int],
    budget: Budget,
    at_once: int,
    progress: Progress | None,
    only: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[tuple[Any, ...]]:
    """The results of every implementation and seed, in this order."""
    context = get_context("spawn")  # JAX has threads, which a fork would not take along
    # Ctrl-C is for this process: it drops what has not begun, and says nothing for the others.
    quiet = (signal.SIGINT, signal.SIG_IGN)
    with _one_thread(), ProcessPoolExecutor(at_once, context, signal.signal, quiet) as pool:
        jobs: list[Future] = []
        for implementation in implementations:
            for seed in seeds:
                chosen = tuple(only.get(implementation.name, ()))
                job = pool.submit(_judge, implementation, seed, budget, chosen)
                if progress is not None:
                    label = implementation.name
                    job.add_done_callback(lambda _, label=label: progress(label))
                jobs.append(job)
        try:
            return [job.result() for job in jobs]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Have processes started here multiply on one thread each: the matrices are small."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _judge(
    implementation: Implementation, seed: int, budget: Budget, only: tuple[str, ...]
) -> tuple[Any, ...]:
    options: dict[str, Any] = {"shrink_seconds": 0, "isolate": False}
    report = run(implementation, seed=seed, budget=budget, only=only, **options)
    # Pictures are of no use here, and would be sent between processes.
    return tuple(dataclasses.replace(r, heat=(), decades=()) for r in report.results)
