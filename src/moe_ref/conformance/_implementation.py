"""What is judged: a callable, the operation it claims to be, and what it declares."""

import dataclasses
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from moe_ref._errors import require_choice
from moe_ref.conformance._operations import OPERATIONS, apply_layer
from moe_ref.grouped import grouped_matmul, implementations
from moe_ref.layers import Capacity, Dense, Dropless
from moe_ref.routing import route


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation:
    """A kernel, the operation it computes, and its declared capabilities.

    Attributes:
        name: for reports.
        op: one of `OPERATIONS`, which say what is called with what.
        function: the callable; importable by name, so that it can run in a process of its own.
        dtypes: dtypes it accepts.
        zero_tail: it writes zeros into rows that belong to no group. False: such rows of the
            result, and of the gradient, are not looked at.
        gradients: it can be differentiated with `jax.vjp`. None: find out.
        may_decline: it may refuse an input it does not support, with a TypeError, ValueError or
            NotImplementedError. False: that is a failure.
    """

    name: str
    op: str
    function: Callable[..., Any]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    zero_tail: bool = False
    gradients: bool | None = None
    may_decline: bool = True

    def __post_init__(self):
        require_choice(self.op, "op", OPERATIONS)
        for dtype in self.dtypes:
            require_choice(dtype, "dtypes", ("bfloat16", "float16", "float32", "float64"))


def _jitted_route(logits: Any, spec: Any, bias: Any = None, mask: Any = None) -> Any:
    return jax.jit(route, static_argnums=1)(logits, spec, bias, mask)


def _jitted_layer(layer: Any, x: Any, mask: Any = None, *, execution: Any) -> Any:
    return eqx.filter_jit(apply_layer)(layer, x, mask, execution=execution)


def load_target(target: str, *, op: str | None = None) -> Implementation:
    """Import a callable to be judged.

    Args:
        target: `package.module:name`, the name may be dotted. The current folder is searched too.
        op: the operation it computes; a target that is an `Implementation` says so itself.

    Returns:
        The implementation, with the capabilities of a bare callable.

    Raises:
        ValueError: a target or an operation that does not exist, saying what was found.
    """
    if op is not None:
        require_choice(op, "op", OPERATIONS)
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ValueError(f"`target` must be of the form package.module:name; got {target!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _require_import_returns(module_name)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"`target` must be importable; {module_name!r} raised {reason}") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"`target` must exist; {module_name!r} has no {path!r}.")
        found = getattr(found, name)
    if isinstance(found, Implementation):
        if op not in (None, found.op):
            raise ValueError(f"`op` must be {found.op!r}, as {target!r} declares; got {op!r}.")
        return found
    if not callable(found):
        raise ValueError(f"`target` must be callable; {target!r} is a {type(found).__name__}.")
    if op is None:
        known = ", ".join(OPERATIONS)
        raise ValueError(f"`op` must be given for a callable, one of {known}; got None.")
    return Implementation(name=target, op=op, function=found)


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


def builtin() -> tuple[Implementation, ...]:
    """moe_ref's own implementations, with everything they declare."""
    grouped = tuple(
        Implementation(
            name=f"grouped_matmul[{name}]",
            op="grouped_matmul",
            function=functools.partial(grouped_matmul, implementation=name),
            zero_tail=True,
            gradients=True,
            may_decline=False,
        )
        for name in implementations()
    )
    router = Implementation(
        name="route", op="route", function=_jitted_route, gradients=True, may_decline=False
    )
    executions = {
        "Dense": Dense(),
        "Dropless": Dropless(),
        "Capacity": Capacity(capacity_factor=1e9),
    }
    layers = tuple(
        Implementation(
            name=f"MoE[{name}]",
            op="layer",
            function=functools.partial(_jitted_layer, execution=execution),
            gradients=True,
            may_decline=False,
        )
        for name, execution in executions.items()
    )
    return (*grouped, router, *layers)
