"""Call an implementation. This runs beside the kernel."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from moe_ref.conformance._case import Case, leaves, nest
from moe_ref.conformance.operations._libraries import Library, library
from moe_ref.conformance.operations._operation import Operation

Method = Literal["value", "vjp"]
Outputs = dict[str, np.ndarray]


class Refused(Exception):
    """The implementation said, with a clear error, that it does not take this input."""


class Unreadable(Exception):
    """What the implementation returned is not what its operation returns."""


@runtime_checkable
class Callee(Protocol):
    """What is called: an `Implementation`."""

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def vjp(self) -> Callable[..., Any] | None: ...

    @property
    def arrays(self) -> str: ...


def evaluate(operation: Operation, callee: Callee, method: Method, case: Case) -> Outputs:
    """Call the implementation and bring its results back.

    Args:
        operation: what it computes.
        callee: the implementation.
        method: `value`; or `vjp`, to pull `cotangent` back to every floating-point input.
        case: the input.

    Returns:
        Results by name; for `vjp` also `grad.NAME` for every differentiable input.

    Raises:
        Refused: it raised TypeError, ValueError or NotImplementedError.
        Unreadable: it returned something else than the operation does.
    """
    of = library(callee.arrays)
    run = _values if method == "value" else _gradients
    with of.context(case):
        try:
            outputs = of.finish(run(operation, callee, case, of))
        except (TypeError, ValueError, NotImplementedError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise Refused(reason[:300]) from None
        return {name: _taken(name, result, of) for name, result in outputs.items()}


def _taken(name: str, result: Any, of: Library) -> Any:
    array = of.take(result)
    if array.dtype == object:
        what = "None" if result is None else f"of type {type(result).__name__}"
        raise Unreadable(f"{name} is {what}, expected an array")
    return array


def _values(operation: Operation, callee: Callee, case: Case, of: Library) -> dict[str, Any]:
    arrays = _given({k: v for k, v in case.arrays.items() if k != "cotangent"}, of)
    return _results(operation, callee, case, of, arrays)


def _results(
    operation: Operation, callee: Callee, case: Case, of: Library, arrays: dict[str, Any]
) -> dict[str, Any]:
    positional, named = operation.arguments(arrays, case.spec, of)
    returned = callee.function(*positional, **named)
    try:
        found = operation.results(returned, arrays, of)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        kind = type(returned).__name__
        reason = f"it returned a {kind}, which cannot be read: {type(error).__name__}: {error}"
        raise Unreadable(reason) from None
    if operation.main not in found:
        raise Unreadable(f"{operation.main} is missing, of {', '.join(found) or 'nothing'}")
    return found


def moving(operation: Operation, case: Case) -> list[str]:
    """Names of the inputs that a gradient is asked of."""
    flat = leaves({k: v for k, v in case.arrays.items() if k != "cotangent"})
    return [
        name
        for name, array in flat.items()
        if jnp.issubdtype(array.dtype, jnp.floating) and name not in operation.fixed
    ]


def _gradients(operation: Operation, callee: Callee, case: Case, of: Library) -> dict[str, Any]:
    arrays = _given({k: v for k, v in case.arrays.items() if k != "cotangent"}, of)
    flat, names = leaves(arrays), moving(operation, case)
    if callee.vjp is not None:
        results = _results(operation, callee, case, of, arrays)
        found = _own(operation, callee.vjp, case, of, arrays)
        if not isinstance(found, dict):
            several = found if isinstance(found, tuple | list) else (found,)
            found = dict(zip(operation.differentiable, several, strict=False))
    else:
        results, found = of.pull(
            lambda values: _results(operation, callee, case, of, nest(flat | values)),
            {name: flat[name] for name in names},
            operation.main,
            case.arrays["cotangent"],
        )
    return results | {f"grad.{name}": found[name] for name in names if name in found}


def _own(operation: Operation, vjp: Callable, case: Case, of: Library, arrays: dict) -> Any:
    cotangent = of.give(case.arrays["cotangent"])
    if operation.pull is not None:
        return operation.pull(vjp, arrays, case.spec, cotangent, of)
    positional, named = operation.arguments(arrays, case.spec, of)
    return vjp(*positional, cotangent, **named)


def _given(arrays: dict[str, Any], of: Library) -> dict[str, Any]:
    return {
        name: _given(value, of)
        if isinstance(value, dict)
        else None
        if value is None
        else of.give(value)
        for name, value in arrays.items()
    }
