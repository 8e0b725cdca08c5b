"""Kernels that write into an input, but only over numbers that few inputs hold."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._calls import _Changed
from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._losses_kernel import Losses
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._plan_kernel import Plan
from moe_ref.conformance.mutants._route_kernel import Router
from moe_ref.conformance.suite._calls_cases import SUBJECTS

Found = Callable[[np.ndarray], np.ndarray]


def _negative_zero(array: np.ndarray) -> np.ndarray:
    return (array == 0) & np.signbit(array)


def _subnormal(array: np.ndarray) -> np.ndarray:
    return (array != 0) & (np.abs(array) < ml_dtypes.finfo(array.dtype).smallest_normal)


_KINDS: dict[str, Found] = {
    "Inf": np.isinf,
    "-0": _negative_zero,
    "subnormal numbers": _subnormal,
}


class _WritesOver(_Changed):
    """{what} in the {which} floating-point input is overwritten with 1."""

    def __init__(self, kernel: Any, changed: str, what: str, which: str):
        super().__init__(kernel, changed)
        self._found = _KINDS[what]
        self._at = 0 if which == "first" else -1

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """A right result, and an input that holds other numbers."""
        result = call(*given, **named)
        arrays = [a for a in given if isinstance(a, np.ndarray) and a.dtype.kind not in "iub"]
        array = arrays[self._at]
        array[self._found(array)] = 1
        return result


_RIGHT = {"route": Router, "losses": Losses, "plan": Plan, "dispatch_combine": Exchange}


def _mutants(op: str) -> tuple[Mutant, ...]:
    (subject,) = (each for each in SUBJECTS if each.op == op)
    made = []
    for call, offset, which in (("value", 1, "first"), ("vjp", 4, "first"), ("vjp", 4, "last")):
        # The cotangent of losses is of two numbers, which are Inf.
        two = op == "losses" and which == "last"
        for what in ("Inf",) if two else _KINDS:
            kernel = _WritesOver(_RIGHT[op](), call, what, which)
            name = f"{op}, writes over {what} of the {which} input in {call}"
            fault = str(_WritesOver.__doc__).format(what=what, which=which)
            where = " in the gradient." if call == "vjp" else "."
            mine = numpy_implementation(name, op, kernel)
            killers = (f"{subject.prefix}-{subject.first + offset}",)
            fault = fault.replace(".", where)
            made.append(Mutant(implementation=mine, fault=fault, killers=killers))
    return tuple(made)


# By operation.
MUTANTS: dict[str, tuple[Mutant, ...]] = {op: _mutants(op) for op in _RIGHT}
