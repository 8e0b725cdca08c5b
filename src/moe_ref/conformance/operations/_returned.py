"""What is said of a kernel that raises, or returns something else than its operation does."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Unusable(Exception):
    """The implementation is not what its operation says; the message is all there is to know."""


def said(error: BaseException) -> str:
    """An exception's type and the first line of its message, for one line of a report."""
    kind = type(error).__name__
    try:
        lines = str(error).splitlines()
    except Exception:  # a kernel's own class, which may do anything
        return f"{kind}, whose message cannot be read"
    text = lines[0][:300] if lines else ""
    return f"{kind}: {text}" if text.strip() else f"{kind} without a message"


def described(result: Any) -> str:
    """What was returned, for a message."""
    if result is None or isinstance(result, str | bytes):
        return "None" if result is None else type(result).__name__
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {len(result)}"
    if hasattr(result, "shape"):
        return "one array"
    kind = type(result).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def unpacked(result: Any, expected: str, *, least: int, most: int | None = None) -> Sequence[Any]:
    """Several results.

    Args:
        result: what the kernel returned.
        expected: what it should have returned, for the message.
        least: how many there must be.
        most: how many there may be; None: any number.

    Raises:
        Unusable: it is no tuple or list of so many.
    """
    several = isinstance(result, tuple | list) and len(result) >= least
    if not several or (most is not None and len(result) > most):
        raise Unusable(f"it returned {described(result)}, expected {expected}")
    return result


def require_array(name: str, result: Any) -> None:
    """Refuse what is no array at first sight; a list may be one.

    Raises:
        Unusable: it is None, text, a tuple, or an array of objects.
    """
    if result is None or isinstance(result, str | bytes | tuple):
        raise Unusable(f"{name} is {described(result)}, expected an array")
    if isinstance(result, np.ndarray) and result.dtype == object:
        raise Unusable(f"{name} is an array of dtype object, expected numbers")
