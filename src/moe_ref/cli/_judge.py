"""Judge several implementations at once, with bars."""

import shlex
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from moe_ref.cli._console import progress_bar, stdout_to_stderr

# Each kernel runs in a process of its own, which spends its time compiling on one core.
AT_ONCE = 2


class _StoppedError(Exception):
    """The run was interrupted while this implementation was being judged."""


def judge_all(implementations: Sequence[Any], only: Sequence[str], **options: Any) -> list[Any]:
    """Run the checks of every implementation.

    Args:
        implementations: what is judged.
        only: ids of checks; empty: all. Implementations that have none of them are left out.
        **options: of `conformance.run`.

    Returns:
        The reports, in the order of the implementations.
    """
    from moe_ref import conformance
    from moe_ref.conformance._worker import end_all

    stop = threading.Event()
    with stdout_to_stderr(), progress_bar() as bar, ThreadPoolExecutor(AT_ONCE) as pool:

        def judge(implementation: Any, ids: list[str]) -> Any:
            task = bar.add_task(implementation.name)

            def progress(done: int, total: int, label: str) -> None:
                if stop.is_set():
                    raise _StoppedError
                bar.update(task, completed=done, total=total, description=label)

            return conformance.run(implementation, only=ids, progress=progress, **options)

        jobs = []
        for implementation in implementations:
            known = [check.id for check in conformance.checks(implementation.op)]
            ids = [wanted for wanted in only if wanted in known]
            if ids or not only:
                jobs.append(pool.submit(judge, implementation, ids))
        try:
            return [job.result() for job in jobs]
        except BaseException as error:
            stop.set()
            end_all()
            if isinstance(error, KeyboardInterrupt) and options.get("resume") is not None:
                print(f"moe-ref: to go on: moe-ref {shlex.join(sys.argv[1:])}", file=sys.stderr)
            raise


def replay_all(implementations: Sequence[Any], path: Path, **options: Any) -> list[Any]:
    """Try a saved failure again.

    Args:
        implementations: what is judged.
        path: the saved failure.
        **options: of `conformance.replay`.

    Returns:
        The reports, in the order of the implementations.
    """
    from moe_ref import conformance

    with stdout_to_stderr():
        results = [conformance.replay(each, path, **options) for each in implementations]
    return [conformance.Report((result,)) for result in results]
