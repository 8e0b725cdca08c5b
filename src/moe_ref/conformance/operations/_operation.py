"""What an operation is: how it is called, and what it must give back."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._libraries import Library

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Form:
    """Shape and kind a result must have.

    Attributes:
        shape: of the array; None: any number.
        kind: `float`, `integer`, or `any` of both.
        low: the smallest integer allowed.
        high: integers are below this; None: no limit.
    """

    shape: tuple[int | None, ...]
    kind: Literal["float", "integer", "any"] = "float"
    low: int = -(2**63)
    high: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of an MoE layer that a kernel may implement.

    Attributes:
        name: its name.
        signature: what is called with what, for a reader.
        gradient: how a gradient that the kernel brings along is called, for a reader.
        arguments: positional and keyword arguments, from a case's arrays in the kernel's library.
        results: what the callable returned, by name. It may go on calling what was returned.
        form: what each result must look like; a result that is absent was not asked for.
        main: the result a cotangent belongs to.
        differentiable: inputs in the order in which a kernel's own gradient returns theirs.
        pull: how a gradient that the kernel brings along is called, where it takes more than the
            arguments and the cotangent.
        unmoved: differentiable inputs whose gradient is 0 by right, and may be left out.
        fixed: floating-point inputs that are no parameters: nothing is pulled back to them.
        sizes: size of each dimension a kernel may declare limits for.
        smaller: inputs to try in place of a failing one.
        declared: the case as an `Implementation` declares to do it, where that is more than sizes
            and precision; None: it cannot do it.
        fit: the case with its dimensions rounded up to what a kernel declares, or None where its
            types do not hold them; None: they cannot be rounded.
    """

    name: str
    signature: str
    gradient: str
    arguments: Callable[[dict[str, Any], Any, Library], Arguments]
    results: Callable[[Any, dict[str, Any], Library], dict[str, Any]]
    form: Callable[[Case], dict[str, Form]]
    main: str
    differentiable: tuple[str, ...]
    unmoved: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    pull: Callable[..., Any] | None = None
    sizes: Callable[[Case], dict[str, int]]
    smaller: Callable[[Case], Iterator[Case]]
    declared: Callable[[Case, Any], Case | None] | None = None
    fit: Callable[[Case, dict[str, int]], Case | None] | None = None
