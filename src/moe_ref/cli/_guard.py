"""Exit statuses, and one line in place of a traceback."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

FAILED, WRONG_USE, INTERNAL, INTERRUPTED, CLOSED_PIPE = 1, 2, 70, 130, 141
DEBUG = "MOE_REF_DEBUG"


class WrongUseError(Exception):
    """The command was used wrongly; the message is the one line to show."""


@contextlib.contextmanager
def wrong_use(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Say that errors of these kinds, raised inside, are the caller's and not ours."""
    try:
        yield
    except kinds as error:
        raise WrongUseError(prefix + (str(error) or type(error).__name__)) from error


def require_place(path: Path | None, option: str) -> None:
    """Refuse, before any work is done, a file that could not be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise WrongUseError(f"`{option}` must be a file in a folder that exists; got {path}.")


class Guarded(TyperGroup):
    """A group of commands that never shows a traceback unless MOE_REF_DEBUG asks for it."""

    def main(self, args: Any = None, prog_name: str | None = None, **extra: Any) -> Any:
        """Run the command line and exit."""
        arguments = list(sys.argv[1:] if args is None else args)
        sys.exit(guarded(lambda: self._run(arguments)))

    def _run(self, arguments: list[str]) -> None:
        with self.make_context("moe-ref", arguments) as context:
            self.invoke(context)
        sys.stdout.flush()


def guarded(run: Callable[[], None]) -> int:
    """Run and return the exit status; what goes wrong becomes one line on standard error."""
    try:
        run()
    except typer.Exit as done:
        return _flushed(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _closed_pipe()
    except WrongUseError as error:
        return _refuse(str(error), error)
    except (Exception, SystemExit) as error:
        message = getattr(error, "format_message", None)
        if message is not None:  # the argument parser's errors, whichever package they live in
            return _refuse(message() + _hint(error), None)
        return _internal(error)
    return 0


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _closed_pipe()
    return code


def _closed_pipe() -> int:
    # Python flushes stdout once more when it exits, and would complain.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


def _hint(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f" See `{context.command_path} --help`." if context is not None else ""


def _refuse(message: str, error: Exception | None) -> int:
    if error is not None and os.environ.get(DEBUG):
        raise error
    _say(message)
    return WRONG_USE


def _internal(error: BaseException) -> int:
    if os.environ.get(DEBUG):
        raise error
    what = f"{type(error).__name__}: {error}"
    _say(f"internal error, {what} (a bug in moe_ref; {DEBUG}=1 shows where).")
    return INTERNAL


def _say(message: str) -> None:
    with contextlib.suppress(OSError):
        print("moe-ref: " + " ".join(message.split()), file=sys.stderr, flush=True)
