"""Run kernels in a process of their own, with a time limit."""

import dataclasses
import multiprocessing
import pickle
import signal
import traceback
from typing import Any, Literal

import numpy as np

from moe_ref.conformance import _operations
from moe_ref.conformance._case import Case
from moe_ref.conformance._implementation import Implementation

Method = Literal["value", "twice", "vjp"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call came to.

    Attributes:
        outputs: results by name; None if there are none.
        refused: the clear error with which the implementation declined.
        broken: how the call failed: an exception, a crash, or the time limit.
    """

    outputs: dict[str, np.ndarray] | None = None
    refused: str | None = None
    broken: str | None = None


class Runner:
    """Calls one implementation; a crash or a hang costs one call, not the run.

    Kernels that cannot be pickled by name (lambdas, closures) run in this process, unprotected.
    """

    def __init__(self, implementation: Implementation, *, time_limit: float):
        self._implementation = implementation
        self._time_limit = time_limit
        self._process: Any = None
        self._connection: Any = None
        try:
            self._pickled = pickle.dumps(implementation)
        except (pickle.PicklingError, AttributeError, TypeError):
            self._pickled = None
        main = getattr(implementation.function, "__module__", None) == "__main__"
        self.isolated = self._pickled is not None and not main

    def call(self, method: Method, case: Case) -> Outcome:
        """Run `method` of `_operations` on `case`."""
        if not self.isolated:
            return _attempt(self._implementation, method, case)
        if self._process is None or not self._process.is_alive():
            self._start()
        try:
            self._connection.send((method, case))
            if not self._connection.poll(self._time_limit):
                self.close()
                return Outcome(broken=f"no answer within {self._time_limit:g} seconds")
            return self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = self.close()
            how = (
                f"killed by signal {-code}" if code is not None and code < 0 else f"exited, {code}"
            )
            return Outcome(broken=f"the kernel's process died ({how})")

    def close(self) -> int | None:
        """End the process, and give its exit code if it had ended by itself."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.join(timeout=0.5)
        code = process.exitcode
        process.kill()
        process.join()
        self._connection.close()
        return code

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._pickled), daemon=True)
        # Ctrl-C is for the judge, which then ends this process; a child inherits the mask.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()


def _serve(connection: Any, pickled: bytes) -> None:
    implementation = pickle.loads(pickled)
    while True:
        try:
            method, case = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(implementation, method, case))


def _attempt(implementation: Implementation, method: Method, case: Case) -> Outcome:
    run = getattr(_operations, method)
    try:
        return Outcome(outputs=run(implementation.op, implementation.function, case))
    except _operations.Refused as refused:
        return Outcome(refused=str(refused))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).splitlines()[0][:300] if str(error) else ""
        return Outcome(broken=f"{type(error).__name__}: {text} ({last.name}, line {last.lineno})")
