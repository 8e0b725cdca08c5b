"""Error messages in one form: argument, requirement, value."""

import dataclasses
import functools
import typing
from collections.abc import Collection
from typing import Any

import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable

_CONF = BeartypeConf(is_pep484_tower=True)


def require(condition: bool | np.bool_, argument: str, requirement: str, value: object) -> None:
    """Raise `ValueError` unless `condition` holds.

    Args:
        condition: what must be true; known while tracing.
        argument: name of the offending argument.
        requirement: what it must be, as in "in [1, num_experts=8]".
        value: what came.

    Raises:
        ValueError: "`argument` must be requirement; got value."
    """
    if not condition:
        raise ValueError(f"`{argument}` must be {requirement}; got {str(value)[:200]}.")


def require_choice(value: object, argument: str, choices: Collection[str]) -> None:
    """Raise `ValueError` unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        wanted = ", ".join(sorted(choices))
        raise ValueError(f"`{argument}` must be one of {wanted}; got {repr(value)[:200]}.")


def require_types(record: Any) -> None:
    """Raise `ValueError` unless every field of the dataclass `record` has its annotated type."""
    hints = _hints(type(record))
    for field in dataclasses.fields(record):
        value, hint = getattr(record, field.name), hints[field.name]
        if typing.get_origin(hint) is typing.Literal:
            require_choice(value, field.name, typing.get_args(hint))
        elif not is_bearable(value, hint, conf=_CONF) or (hint is int and value is True):
            name = getattr(hint, "__name__", None) if isinstance(hint, type) else None
            wanted = name or str(hint).replace("typing.", "")
            raise ValueError(f"`{field.name}` must be of type {wanted}; got {value!r}.")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
