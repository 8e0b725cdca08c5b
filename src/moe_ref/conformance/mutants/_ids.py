"""Kernels that read the ids of experts as integers of another size."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._losses_kernel import Losses
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._plan_kernel import Plan

_STRIDE = 120  # a multiple that int8 holds of id 1, and int16 of ids up to 273


class _ReadsIds:
    """A right kernel of other ids."""

    def __init__(self, kernel: Any, change: Callable[[np.ndarray], np.ndarray]):
        self._kernel = kernel
        self._change = change

    def value(self, first: np.ndarray, experts: np.ndarray, *rest: Any, **named: Any) -> Any:
        """The value."""
        return self._kernel.value(first, self._change(experts), *rest, **named)

    def vjp(self, first: np.ndarray, experts: np.ndarray, *rest: Any, **named: Any) -> Any:
        """The gradients."""
        return self._kernel.vjp(first, self._change(experts), *rest, **named)


def _narrow_offsets(ids: np.ndarray) -> np.ndarray:
    """Offsets of experts are computed in the dtype of the ids, where they wrap."""
    stride = ids.dtype.type(_STRIDE)
    return (ids * stride) // stride


def _words(ids: np.ndarray) -> np.ndarray:
    """Ids of 64 bits are read as twice as many of 32."""
    if ids.dtype != np.int64:
        return ids
    words = np.ascontiguousarray(ids).view(np.int32).reshape(-1)
    return words[: ids.size].reshape(ids.shape)


_RIGHT = {"losses": (Losses, "LOS"), "plan": (Plan, "PLN"), "dispatch_combine": (Exchange, "EXC")}
_FIRST = {"losses": 33, "plan": 60, "dispatch_combine": 71}


def _mutant(op: str, change: Callable[[np.ndarray], np.ndarray]) -> Mutant:
    kernel, prefix = _RIGHT[op]
    called = change.__name__.replace("_", " ").title().replace(" ", "")
    mine = numpy_implementation(f"{op}, {called}", op, _ReadsIds(kernel(), change))
    killers = tuple(f"{prefix}-{_FIRST[op] + offset}" for offset in (0, 1))
    return Mutant(implementation=mine, fault=str(change.__doc__), killers=killers)


# By operation.
MUTANTS: dict[str, tuple[Mutant, ...]] = {
    op: (_mutant(op, _narrow_offsets), _mutant(op, _words)) for op in _RIGHT
}
