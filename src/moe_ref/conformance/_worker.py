"""Run kernels in a process of their own, with limits on time, memory and output."""

import dataclasses
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import jax

from moe_ref._counted import counted
from moe_ref.conformance import operations
from moe_ref.conformance._case import Case
from moe_ref.conformance._form import malformed
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._output import Output
from moe_ref.conformance.operations import (
    OPERATIONS,
    Method,
    Outputs,
    Refused,
    Unusable,
    evaluate_all,
    said,
)

_START = "from moe_ref.conformance._worker import serve; serve({fd}, {memory})"
_STARTUP_SECONDS = 300.0
_READY = "ready"
# Bytes of results from which their shape is judged before they are sent.
_LARGE = 2**28
_LIVING: set[subprocess.Popen] = set()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call came to.

    Attributes:
        outputs: results by name; None if there are none.
        refused: the clear error with which the implementation declined.
        broken: how the call failed: an exception, a crash, or a limit.
    """

    outputs: Outputs | None = None
    refused: str | None = None
    broken: str | None = None


class Runner:
    """Calls one implementation; a crash or a hang costs one call, not the run.

    Kernels that cannot be imported by name (lambdas, closures, functions of a script) run in this
    process, without limits and unprotected.
    """

    def __init__(
        self,
        implementation: Implementation,
        *,
        time_limit: float | int,
        memory_limit: int = 2**34,
        isolate: bool = True,
    ):
        self._implementation = implementation
        self._time_limit = time_limit
        self._memory_limit = memory_limit
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._output: Output | None = None
        self.isolated = isolate
        if isolate:
            try:
                self._pickled = pickle.dumps(implementation)
                self.isolated = b"__main__" not in self._pickled
            except (pickle.PicklingError, AttributeError, TypeError):
                self.isolated = False

    def call(self, method: Method, cases: Mapping[str, Case]) -> dict[str, Outcome]:
        """Evaluate inputs in the manner of the first one; what fails, fails for all of them."""
        found = self._answer(method, cases)
        return dict.fromkeys(cases, found) if isinstance(found, Outcome) else found

    def _answer(self, method: Method, cases: Mapping[str, Case]) -> Outcome | dict[str, Outcome]:
        if not self.isolated:
            return _attempt(self._implementation, method, cases)
        try:
            connection = self._started()
            if not self.isolated:
                return _attempt(self._implementation, method, cases)
            assert self._output is not None
            self._output.reset()
            connection.send((method, cases))
            if not connection.poll(self._time_limit):
                self.close()
                limit = counted(self._time_limit, "second", "g")
                return Outcome(broken=f"no answer within {limit}")
            found = connection.recv()
            flood = self._output.flood
            return Outcome(broken=flood) if flood is not None else found
        except (EOFError, OSError):
            code = self.close()
            how = f"exited, {code}" if code is None or code >= 0 else f"killed by signal {-code}"
            return Outcome(broken=f"the kernel's process died ({how})")

    def close(self) -> int | None:
        """End the process, and give its exit code if it had ended by itself."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            code = process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            code = None
        process.kill()
        process.wait()
        _LIVING.discard(process)
        if self._connection is not None:
            self._connection.close()
        if self._output is not None:
            self._output.close()
        return code

    def _started(self) -> Connection:
        """The connection to a living process, started if need be; it has imported everything."""
        if self._process is not None and self._process.poll() is None and self._connection:
            return self._connection
        self.close()
        self._connection, theirs = Pipe()
        # A session of its own: Ctrl-C is for the judge, which then ends this process.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(fd=theirs.fileno(), memory=self._memory_limit)],
            pass_fds=(theirs.fileno(),),
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _LIVING.add(self._process)
        self._output = Output(self._process.stdout)
        theirs.close()
        self._connection.send_bytes(self._pickled)
        if not self._connection.poll(_STARTUP_SECONDS):
            raise EOFError
        if self._connection.recv() != _READY:
            self.close()
            self.isolated = False
        return self._connection


def end_all() -> None:
    """Kill every kernel's process: for a run that is interrupted while it waits for them."""
    for process in tuple(_LIVING):
        process.kill()


def serve(descriptor: int, memory: int) -> None:
    """Answer calls until the judge goes away."""
    connection = Connection(descriptor)
    try:
        implementation = pickle.loads(connection.recv_bytes())
    except (ImportError, AttributeError) as error:
        # The name is known to the judge's process alone, as those of pytest's importlib mode are.
        connection.send(str(error))
        return
    jax.devices()  # a GPU's driver takes much address space, once
    _limit_memory(memory)
    connection.send(_READY)
    while True:
        try:
            method, cases = connection.recv()
        except EOFError:
            return
        found = _attempt(implementation, method, cases, caught=BaseException)
        _send(connection, _sendable(implementation.op, cases, found))


def _sendable(
    op: str, cases: Mapping[str, Case], found: Outcome | dict[str, Outcome]
) -> Outcome | dict[str, Outcome]:
    """What was found, without results that are large for having a wrong shape."""
    for name, outcome in found.items() if isinstance(found, dict) else ():
        outputs = outcome.outputs or {}
        if sum(array.nbytes for array in outputs.values()) > _LARGE:
            wrong = malformed(op, cases[name], outputs)
            if wrong is not None:
                return Outcome(broken=f"{name}: {wrong}" if name else wrong)
    return found


def _send(connection: Connection, found: Outcome | dict[str, Outcome]) -> None:
    try:
        connection.send(found)
    except MemoryError:  # while it was pickled: nothing is sent yet
        several = [found] if isinstance(found, Outcome) else found.values()
        arrays = [array for each in several for array in (each.outputs or {}).values()]
        size = sum(array.nbytes for array in arrays) / 2**30
        connection.send(Outcome(broken=f"results of {size:.3g} GiB could not be sent: no memory"))


def _limit_memory(extra: int) -> None:
    """Private memory this process may add to what it has: a huge allocation fails, alone."""
    try:
        import resource

        with open("/proc/self/status", encoding="ascii") as status:
            used = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
    except (ImportError, OSError):  # no Linux, no limit
        return
    limit = used * 1024 + extra
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _attempt(
    implementation: Implementation,
    method: Method,
    cases: Mapping[str, Case],
    caught: type[BaseException] | tuple[type[BaseException], ...] = (Exception, SystemExit),
) -> Outcome | dict[str, Outcome]:
    """What a call came to; in the judge's own process Ctrl-C and the like are not the kernel's."""
    operation = OPERATIONS[implementation.op]
    try:
        found = evaluate_all(operation, implementation, method, cases)
        return {name: Outcome(outputs=outputs) for name, outputs in found.items()}
    except Refused as refused:
        return Outcome(refused=str(refused))
    except Unusable as unusable:
        return Outcome(broken=" ".join(str(unusable).split()))
    except caught as error:
        return Outcome(broken=f"{said(error)}{_place(error)}")


def _place(error: BaseException) -> str:
    """The innermost line of the kernel's own file that led to an error; nothing without one."""
    ours = (__file__, os.path.dirname(operations.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    last = max((i for i, f in enumerate(frames) if f.filename.startswith(ours)), default=-1)
    theirs = frames[last + 1 :]
    mine = [frame for frame in theirs if frame.filename == theirs[0].filename]
    return f" ({mine[-1].name}, line {mine[-1].lineno})" if mine else ""
