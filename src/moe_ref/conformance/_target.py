"""From a name on the command line to what is judged."""

import importlib
import os
import subprocess
import sys
from typing import Any

from moe_ref._errors import require_choice
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._shared_library import from_shared_library
from moe_ref.conformance.operations import OPERATIONS

_LIBRARIES = (".so", ".dylib", ".dll")


def load_target(target: str, *, op: str | None = None, arrays: str | None = None) -> Implementation:
    """Import a callable to be judged.

    Args:
        target: `package.module:name`, the name may be dotted; the current folder is searched too.
            Or `path/to/library.so:symbol`, see `from_shared_library`.
        op: the operation it computes; a target that is an `Implementation` says so itself.
        arrays: library of the arrays it takes, `jax`, `numpy` or `torch`; None: `jax`, and
            `torch` for what lives in a module of torch.

    Returns:
        The implementation, with the capabilities of a bare callable.

    Raises:
        ValueError: a target or an operation that does not exist, saying what was found.
    """
    if op is not None:
        require_choice(op, "op", OPERATIONS)
    if not isinstance(target, str):
        raise ValueError(f"`target` must be a string package.module:name; got {target!r}.")
    module_name, _, path = target.rpartition(":")
    if not module_name or not path:
        raise ValueError(f"`target` must be of the form package.module:name; got {target!r}.")
    found: Any = (
        from_shared_library(module_name, path)
        if module_name.endswith(_LIBRARIES)
        else _found(target, module_name, path)
    )
    if isinstance(found, Implementation):
        for name, given in (("op", op), ("arrays", arrays)):
            declared = getattr(found, name)
            if given not in (None, declared):
                said = f"`{name}` must be {declared!r}, as {target!r} declares; got {given!r}."
                raise ValueError(said)
        return found
    if not callable(found):
        raise ValueError(f"`target` must be callable; {target!r} is a {type(found).__name__}.")
    if op is None:
        known = ", ".join(OPERATIONS)
        raise ValueError(f"`op` must be given for a callable, one of {known}; got None.")
    guessed = "torch" if module_name.partition(".")[0] == "torch" else "jax"
    return Implementation(name=target, op=op, function=found, arrays=arrays or guessed)


def _found(target: str, module_name: str, path: str) -> Any:
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise ValueError(f"`target` must be of the form package.module:name; got {target!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _require_import_returns(module_name)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"`target` must be importable; {module_name!r} raised {reason}") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"`target` must exist; {module_name!r} has no {path!r}.")
        found = getattr(found, name)
    return found


def _require_import_returns(module_name: str) -> None:
    """Import in a process of its own first: some modules end the process that imports them."""
    if module_name in sys.modules:
        return
    script = f"import importlib; importlib.import_module({module_name!r}); print('imported')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    # An exception (exit status 1) is reported by the import that follows.
    if done.returncode != 1 and "imported" not in done.stdout:
        raise ValueError(
            f"`target` must be importable; importing {module_name!r} ended the process "
            f"({done.returncode})."
        )
