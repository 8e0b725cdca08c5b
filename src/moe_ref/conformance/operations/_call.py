"""Call an implementation. This runs beside the kernel."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from moe_ref._counted import counted
from moe_ref.conformance._case import Case, leaves, nest
from moe_ref.conformance.operations._libraries import Library, library
from moe_ref.conformance.operations._operation import Operation
from moe_ref.conformance.operations._returned import Unusable, described, require_array, said

Method = Literal["value", "vjp"]
Outputs = dict[str, np.ndarray]
# The rest of a call, from the arrays of an input; results by name.
_Rest = Callable[[dict[str, Any]], dict[str, Any]]


class Refused(Exception):
    """The implementation said, with a clear error, that it does not take this input."""


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
    """Call the implementation and bring its results back: `evaluate_all` of one input."""
    return evaluate_all(operation, callee, method, {"": case})[""]


def evaluate_all(
    operation: Operation, callee: Callee, method: Method, cases: Mapping[str, Case]
) -> dict[str, Outputs]:
    """Call the implementation on several inputs, and only then bring any results back.

    Args:
        operation: what it computes.
        callee: the implementation.
        method: `value`; or `vjp`, to pull `cotangent` back to every floating-point input.
        cases: inputs by name, which are called in the manner of the first one.

    Returns:
        For every input results by name; for `vjp` also `grad.NAME` for every differentiable one.

    Raises:
        Refused: it raised TypeError, ValueError or NotImplementedError.
        Unusable: it cannot be called so, returned something else than the operation does, or
            changed what it was given.
    """
    of, first = library(callee.arrays), next(iter(cases.values()))
    begin = _value if method == "value" else _gradients
    with of.context(first):
        given = {name: _given(case.arrays, of, case.manner) for name, case in cases.items()}
        try:
            if first.manner == "reused":
                rest = begin(operation, callee, first, of, next(iter(given.values())))
                begun = dict.fromkeys(cases, rest)
            else:
                begun = {
                    name: begin(operation, callee, case, of, given[name])
                    for name, case in cases.items()
                }
            results = of.finish({name: rest(given[name]) for name, rest in begun.items()})
        except (TypeError, ValueError, NotImplementedError) as error:
            raise Refused(said(error)) from None
        if first.manner == "watched":
            for name, case in cases.items():
                _require_unchanged(given[name], case, of)
        return {
            name: {key: _taken(key, result, of) for key, result in found.items()}
            for name, found in results.items()
        }


def _taken(name: str, result: Any, of: Library) -> Any:
    require_array(name, result)
    try:
        array = of.take(result)
    except (TypeError, ValueError):
        if not isinstance(result, list):
            raise
        array = np.asarray(None)  # a ragged list, or one of what is no number
    if array.dtype == object:
        raise Unusable(f"{name} is {described(result)}, expected an array")
    return array


def _require_unchanged(given: dict[str, Any], case: Case, of: Library) -> None:
    """Refuse a kernel that wrote into its inputs, or gave their memory away."""
    before = leaves(case.arrays)
    for name, array in leaves(given).items():
        if of.is_gone(array):
            raise Unusable(f"{name} is gone after the call: its memory was given away")
        if of.take(array).tobytes() != of.take(of.give(before[name])).tobytes():
            raise Unusable(f"{name} is an input, and holds other numbers after the call")


def _value(
    operation: Operation, callee: Callee, case: Case, of: Library, arrays: dict[str, Any]
) -> _Rest:
    inputs = _without_cotangent(arrays)
    positional, named = operation.arguments(inputs, case.spec, of)
    returned = _called(callee.function, operation.signature, positional, named)
    return lambda others: _read(operation, returned, _without_cotangent(others), of)


def _called(function: Callable, expected: str, positional: tuple, named: dict[str, Any]) -> Any:
    """Call a kernel; say what is expected of one that cannot be called so."""
    try:
        return function(*positional, **named)
    except TypeError:
        missed = _unbound(function, positional, {})
        if missed is not None:
            count = counted(len(positional), "positional argument")
            short = re.split(", where |; ", expected)[0]
            said = f"it cannot be called with {count}, {missed}; expected {short}"
            raise Unusable(said) from None
        missed = _unbound(function, positional, named)
        if missed is not None:
            raise TypeError(missed) from None
        raise


def _unbound(function: Callable, positional: tuple, named: dict[str, Any]) -> str | None:
    """Why a function has no parameters for these arguments; None if it has, or hides them."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        return str(error)
    return None


def _read(
    operation: Operation, returned: Any, arrays: dict[str, Any], of: Library
) -> dict[str, Any]:
    try:
        found = operation.results(returned, arrays, of)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        reason = f"it returned {described(returned)}, which cannot be read: {said(error)}"
        raise Unusable(reason) from None
    if operation.main not in found:
        raise Unusable(f"{operation.main} is missing, of {', '.join(found) or 'nothing'}")
    for name, result in found.items():
        require_array(name, result)
    return found


def moving(operation: Operation, case: Case) -> list[str]:
    """Names of the inputs that a gradient is asked of."""
    flat = leaves(_without_cotangent(case.arrays))
    return [
        name
        for name, array in flat.items()
        if jnp.issubdtype(array.dtype, jnp.floating) and name not in operation.fixed
    ]


def _gradients(
    operation: Operation, callee: Callee, case: Case, of: Library, arrays: dict[str, Any]
) -> _Rest:
    inputs, cotangent = _without_cotangent(arrays), arrays["cotangent"]
    flat, names = leaves(inputs), moving(operation, case)
    if callee.vjp is not None:
        vjp, results = callee.vjp, _value(operation, callee, case, of, arrays)(arrays)
        pull = lambda: _own(operation, vjp, case, of, inputs, cotangent)  # noqa: E731
    else:
        results, back = of.pull(
            lambda values: _value(operation, callee, case, of, nest(flat | values))(
                nest(flat | values)
            ),
            {name: flat[name] for name in names},
            operation.main,
        )
        pull = lambda: back(cotangent)  # noqa: E731

    def rest(_: dict[str, Any]) -> dict[str, Any]:
        found = pull()
        return results | {f"grad.{name}": found[name] for name in names if name in found}

    return rest


def _own(
    operation: Operation, vjp: Callable, case: Case, of: Library, arrays: dict, cotangent: Any
) -> dict[str, Any]:
    """Gradients by name from the kernel's own."""

    def call(*positional: Any, **named: Any) -> Any:
        return _called(vjp, operation.gradient, positional, named)

    if operation.pull is not None:
        found = operation.pull(call, arrays, case.spec, cotangent, of)
    else:
        positional, named = operation.arguments(arrays, case.spec, of)
        found = call(*positional, cotangent, **named)
    if isinstance(found, dict):
        return found
    several = found if isinstance(found, tuple | list) else (found,)
    return dict(zip(operation.differentiable, several, strict=False))


def _without_cotangent(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if name != "cotangent"}


def _given(arrays: dict[str, Any], of: Library, manner: str) -> dict[str, Any]:
    return {
        name: _given(value, of, manner)
        if isinstance(value, dict)
        else None
        if value is None
        else of.give(value, manner)
        for name, value in arrays.items()
    }
