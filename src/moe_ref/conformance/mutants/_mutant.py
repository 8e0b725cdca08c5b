"""A wrong implementation, on purpose."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from moe_ref.conformance._implementation import Implementation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """A small wrong implementation: what the suite is worth is whether it notices.

    Attributes:
        implementation: computes something else than its operation.
        fault: what is wrong, in one sentence.
        killers: ids of checks that must fail for it.
        seen: public thread in which the fault was reported, "owner/repository#number"; "" for one
            made up here.
    """

    implementation: Implementation
    fault: str
    killers: tuple[str, ...]
    seen: str = ""

    @property
    def name(self) -> str:
        """Name of the implementation."""
        return self.implementation.name


def numpy_implementation(name: str, op: str, kernel: Any, **declared: Any) -> Implementation:
    """An implementation of NumPy arrays.

    Args:
        name: for reports.
        op: the operation.
        kernel: an object with methods `value` and, for a gradient, `vjp`.
        **declared: further fields of `Implementation`.

    Returns:
        The implementation.
    """
    vjp = getattr(kernel, "vjp", None)
    fields: dict[str, Any] = {"may_decline": False, "gradients": vjp is not None} | declared
    return Implementation(
        name=name, op=op, function=kernel.value, vjp=vjp, arrays="numpy", **fields
    )


def kernels_in(module: dict[str, Any], base: type) -> list[type]:
    """The subclasses of `base` that a module, given as its `globals()`, defines, in order."""
    found = [k for k in module.values() if inspect.isclass(k) and issubclass(k, base)]
    return [kernel for kernel in found if kernel.__module__ == module["__name__"]]


def wrong_ones(
    kernels: Iterable[Any], implementation_of: Callable[[Any], Implementation]
) -> tuple[Mutant, ...]:
    """A mutant of each class that names its killers; the fault is its docstring."""
    return tuple(
        Mutant(
            implementation=implementation_of(kernel),
            fault=" ".join((kernel.__doc__ or "").split()),
            killers=kernel.killers,
            seen=kernel.seen,
        )
        for kernel in kernels
        if kernel.killers
    )
