"""Where text goes: results to standard output, everything else to standard error."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


class Output(Console):
    """A console that prints text as it is, and lets the caller handle a closed pipe."""

    def __init__(self, *, stderr: bool = False):
        stream = sys.stderr if stderr else sys.stdout
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows its code, and nothing crashes.
            stream.reconfigure(errors="backslashreplace")
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """Say so, in place of an exit status that means a failed check."""
        self.quiet = True
        raise BrokenPipeError


def progress_bar() -> Progress:
    """A bar on standard error; on nothing if that is not a terminal."""
    console = Output(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something takes its time, if somebody is watching."""
    console = Output(stderr=True)
    with console.status(Text(what)) if console.is_terminal else contextlib.nullcontext():
        yield


def print_json(document: Any) -> None:
    """Write one JSON document to standard output; NaN and infinities become their names."""
    print(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what a judged kernel prints, from Python or from C, to standard error."""
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError):
            real, other = sys.stdout.fileno(), sys.stderr.fileno()
            saved = os.dup(real)
            os.dup2(other, real)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, real)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield
