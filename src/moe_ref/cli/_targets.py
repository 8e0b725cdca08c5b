"""From the command line to what is judged."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from moe_ref.cli._console import stdout_to_stderr
from moe_ref.cli._guard import WrongUseError, wrong_use

# What an operation leaves to be declared, beside format, rule and policy.
_QUANTISING = {"quantize": ("axis", "block"), "grouped_matmul_mx": ("wgrad",)}


def implementations(
    target: str | None,
    op: str | None,
    arrays: str | None,
    numerics: str | None,
    mx: Sequence[str] | None = None,
) -> tuple[Any, ...]:
    """What is judged.

    Args:
        target: what `conformance.load_target` takes; None: what moe_ref ships.
        op: the operation.
        arrays: library of the arrays that the target takes.
        numerics: what is declared for dtypes that it leaves open.
        mx: what is declared of a target that quantises, as NAME=VALUE.

    Returns:
        The implementations.
    """
    for name, given in (("--arrays", arrays), ("--mx", mx)):
        if target is None and given:
            raise WrongUseError(f"`{name}` must come with a TARGET.")
    with stdout_to_stderr():
        found = _shipped(op) if target is None else (_load(target, op, arrays),)
    if mx:
        found = tuple(_quantising(each, mx) for each in found)
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


def _quantising(implementation: Any, given: Sequence[str]) -> Any:
    """The implementation with the MX format and rules that the command line declares."""
    from moe_ref.spec import MXSpec

    if implementation.op not in _QUANTISING:
        raise WrongUseError(f"`--mx` must come with --op {' or '.join(_QUANTISING)}.")
    if implementation.mx is not None:
        raise WrongUseError(f"`--mx` must not be given: {implementation.name} declares its own.")
    known = ("format", "rule", "nonfinite", *_QUANTISING[implementation.op])
    chosen: dict[str, Any] = {}
    for entry in given:
        name, _, value = entry.partition("=")
        if name not in known:
            wanted = f"NAME=VALUE, NAME one of {', '.join(known)}"
            raise WrongUseError(f"`--mx` must be {wanted}; got {entry!r}.")
        if name in chosen:
            said = f"`--mx` must name {name} once; got {chosen[name]!r} and {value!r}."
            raise WrongUseError(said)
        chosen[name] = value
    own = {name: _whole(name, chosen.pop(name)) for name in ("axis", "block") if name in chosen}
    with wrong_use(ValueError):
        return dataclasses.replace(implementation, mx=MXSpec(**chosen), **own)


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongUseError(f"`{name}` must be a whole number; got {text!r}.") from None


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
