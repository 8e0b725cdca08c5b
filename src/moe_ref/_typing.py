"""Runtime-checked signatures whose failures are one-line `ValueError`s."""

import functools
import re
from collections.abc import Callable
from typing import TypeVar

from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

F = TypeVar("F", bound=Callable)

_ARGUMENT = re.compile(r"parameter '(\w+)'")
_ACTUAL = re.compile(r"Actual value: (.*)")
_EXPECTED = re.compile(r"Expected type: (?:<class ')?(.*?)(?:'>)?\.?$", re.MULTILINE)
_AXES = re.compile(r"^(\w+=\d+)$", re.MULTILINE)


def checked(function: F) -> F:
    """Check arguments and result of a public function against its annotations.

    The check runs at call time, so also while tracing under `jax.jit`, `jax.grad` and `jax.vmap`.

    Args:
        function: a function annotated with jaxtyping shapes.

    Returns:
        The function, raising `ValueError` ("`x` must be Float[Array, 'rows k']; got f32[3]") where
        an argument has the wrong rank, size or dtype.
    """
    inner = jaxtyped(typechecker=beartype)(function)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        try:
            return inner(*args, **kwargs)
        except TypeCheckError as error:
            raise ValueError(_concise(function.__qualname__, str(error))) from None

    return wrapper  # pyright: ignore[reportReturnType]


def _concise(name: str, message: str) -> str:
    argument = _ARGUMENT.search(message)
    actual, expected = _ACTUAL.search(message), _EXPECTED.search(message)
    if argument is None or actual is None or expected is None:
        return f"{name}: {message.strip()}"
    wanted = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", expected.group(1))
    axes = ", ".join(_AXES.findall(message))
    with_axes = f" where {axes}" if axes else ""
    return f"{name}: `{argument.group(1)}` must be {wanted}{with_axes}; got {actual.group(1)}."
