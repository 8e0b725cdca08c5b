"""From the command line to what is judged."""

import dataclasses
from typing import Any

from moe_ref.cli._console import stdout_to_stderr
from moe_ref.cli._guard import WrongUseError, wrong_use


def implementations(
    target: str | None, op: str | None, arrays: str | None, numerics: str | None
) -> tuple[Any, ...]:
    """What is judged.

    Args:
        target: what `conformance.load_target` takes; None: what moe_ref ships.
        op: the operation.
        arrays: library of the arrays that the target takes.
        numerics: what is declared for dtypes that it leaves open.

    Returns:
        The implementations.
    """
    if target is None and arrays is not None:
        raise WrongUseError("`--arrays` must come with a TARGET.")
    with stdout_to_stderr():
        found = _shipped(op) if target is None else (_load(target, op, arrays),)
    return _declared(found, numerics)


def _declared(implementations: tuple[Any, ...], numerics: str | None) -> tuple[Any, ...]:
    """The implementations with what the command line declares for dtypes they leave open."""
    from moe_ref.spec import Numerics

    if numerics is None:
        return implementations
    if any(each.op != "grouped_matmul" for each in implementations):
        raise WrongUseError("`--numerics` must come with --op grouped_matmul.")
    of = Numerics.on_tensor_cores
    return tuple(
        dataclasses.replace(each, numerics={d: of(d) for d in each.dtypes} | dict(each.numerics))
        for each in implementations
    )


def _load(target: str, op: str | None, arrays: str | None) -> Any:
    from moe_ref import conformance

    with wrong_use(ValueError):
        return conformance.load_target(target, op=op, arrays=arrays)


def _shipped(op: str | None) -> tuple[Any, ...]:
    from moe_ref import conformance

    shipped = conformance.builtin()
    known = sorted({implementation.op for implementation in shipped})
    if op not in (None, *known):
        raise WrongUseError(f"`--op` must be one of {', '.join(known)}; got {op!r}.")
    return tuple(implementation for implementation in shipped if op in (None, implementation.op))
