"""Kernels of every operation that treat memory wrongly, and ones that declare how they treat it."""

import abc
import functools
import types
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._grouped_kernel import Kernel
from moe_ref.conformance.mutants._grouped_mx_kernel import Kernel as BlockKernel
from moe_ref.conformance.mutants._layer_kernel import Layer
from moe_ref.conformance.mutants._losses_kernel import Losses
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._plan_kernel import Plan
from moe_ref.conformance.mutants._route_kernel import Router
from moe_ref.conformance.suite._calls import SUMMED
from moe_ref.conformance.suite._calls_cases import SUBJECTS, Subject

Change = Callable[[np.ndarray], np.ndarray]


def _mapped(tree: Any, change: Change) -> Any:
    """What a kernel returns, with its arrays changed; those of its callables too."""
    if isinstance(tree, np.ndarray | np.generic):
        return change(np.asarray(tree))
    if isinstance(tree, dict):
        return {name: _mapped(value, change) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(_mapped(value, change) for value in tree)
    if isinstance(tree, types.SimpleNamespace):
        return types.SimpleNamespace(**_mapped(vars(tree), change))
    if callable(tree):
        return lambda *given: _mapped(tree(*given), change)
    return tree


class _Changed(abc.ABC):
    """A kernel, some of whose calls differ."""

    def __init__(self, kernel: Any, *changed: str):
        self._kernel = kernel
        self._changed = changed

    def value(self, *given: Any, **named: Any) -> Any:
        """The value."""
        return self._called("value", given, named)

    def vjp(self, *given: Any, **named: Any) -> Any:
        """The gradients."""
        return self._called("vjp", given, named)

    def _called(self, what: str, given: tuple, named: dict[str, Any]) -> Any:
        call = getattr(self._kernel, what)
        return self.change(call, given, named) if what in self._changed else call(*given, **named)

    @abc.abstractmethod
    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """A call that differs."""


class _SameMemory(_Changed):
    """Every call puts its results where the last one of the same shapes had them."""

    def __init__(self, kernel: Any, *changed: str):
        super().__init__(kernel, *changed)
        self._memory: dict[Any, np.ndarray] = {}

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """The results in memory that is used again, number by number in their order."""
        number = iter(range(100))

        def kept(array: np.ndarray) -> np.ndarray:
            key = (next(number), array.shape, array.dtype)
            memory = self._memory.setdefault(key, np.empty_like(array))
            memory[...] = array
            return memory

        return _mapped(call(*given, **named), kept)


class _WritesIntoInputs(_Changed):
    """The first floating-point input serves as memory and holds other numbers afterwards."""

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """A right result, and an input that is 0."""
        found = call(*given, **named)
        arrays = (each for each in given if isinstance(each, np.ndarray))
        next(each for each in arrays if each.dtype.kind not in "iub")[...] = 0
        return found


class _Canonicalises(_Changed):
    """Numbers of one kind, NaN with a sign, Inf, -0 or subnormal ones, are made others in place."""

    def __init__(self, kernel: Any, *changed: str, kind: str):
        super().__init__(kernel, *changed)
        self._kind = kind

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """A right result, and inputs that hold others of these numbers."""
        found = call(*given, **named)
        for array in given:
            if isinstance(array, np.ndarray) and array.dtype.kind not in "iub":
                hit = self._those(array.astype(np.float64), array.dtype)
                array[hit] = np.nan if self._kind == "NaN" else 0
        return found

    def _those(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if self._kind == "NaN":
            return np.isnan(array) & np.signbit(array)
        if self._kind == "Inf":
            return np.isinf(array)
        if self._kind == "-0":
            return (array == 0) & np.signbit(array)
        return (array != 0) & (np.abs(array) < float(ml_dtypes.finfo(dtype).tiny))


class _OffsetsInPlace(_Changed):
    """Group sizes of 64 bits serve as memory for offsets."""

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """A right result, and sizes that are offsets."""
        found = call(*given, **named)
        for array in given:
            if array.dtype == np.int64:
                np.cumsum(array, out=array)
        return found


class _ReadsDense(_Changed):
    """Arrays are read as if their numbers lay one after the other, whatever their strides are."""

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """The result for other arrays."""
        dense, more = _mapped((given, named), _as_if_dense)
        return call(*dense, **more)


class _ReadsGaps(_Changed):
    """Transposed matrices are seen as such, but gaps between numbers are not."""

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """The result for other arrays, of those with gaps."""
        dense, more = _mapped((given, named), _without_gaps)
        return call(*dense, **more)


class _ReadsExpanded(_Changed):
    """Strides are seen but those of 0, of a number that stands for many."""

    def change(self, call: Callable, given: tuple, named: dict[str, Any]) -> Any:
        """The result for other arrays, of those that are expanded."""
        dense, more = _mapped((given, named), _if_not_expanded)
        return call(*dense, **more)


def _as_if_dense(array: np.ndarray) -> np.ndarray:
    strides = np.empty(array.shape, array.dtype).strides
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def _without_gaps(array: np.ndarray) -> np.ndarray:
    turned = array.ndim > 1 and array.swapaxes(-1, -2).flags.c_contiguous
    return array if turned else _as_if_dense(array)


def _if_not_expanded(array: np.ndarray) -> np.ndarray:
    return _as_if_dense(array) if array.size > 1 and not any(array.strides) else array


class _OnlyTheLastPlan(Plan):
    """`unpermute` brings rows back by the plan that was made last."""

    def __init__(self):
        self._layout: Any = None

    def layout(self, experts, num_experts, capacity):
        self._layout = super().layout(experts, num_experts, capacity)
        return self._layout

    def unpermute(self, rows, weights, experts, layout, x):
        last = self._layout if self._layout.row.shape == layout.row.shape else layout
        return super().unpermute(rows, weights, experts, last, x)


class _OnePlanOneUse(Plan):
    """The first `unpermute` of a plan clears it."""

    with_room = False

    def unpermute(self, rows, weights, experts, layout, x):
        y = super().unpermute(rows, weights, experts, layout, x)
        if self.with_room == (layout.rows != experts.size):
            layout.row[:] = -1
        return y


class _OneUseOfRoom(_OnePlanOneUse):
    """The first `unpermute` of a plan with a capacity clears it."""

    with_room = True


_RIGHT = {
    "grouped_matmul": Kernel(),
    "grouped_matmul_mx": BlockKernel(),
    "route": Router(),
    "losses": Losses(),
    "plan": Plan(),
    "layer": Layer(),
    "dispatch_combine": Exchange(),
}
# By the number of the check after the first of its operation, and which call differs.
_WRONG: tuple[tuple[type[_Changed], int, str], ...] = (
    (_SameMemory, 0, "value"),
    (_WritesIntoInputs, 1, "value"),
    (_ReadsDense, 2, "value"),
    (_ReadsGaps, 2, "value"),
    (_SameMemory, 3, "vjp"),
    (_WritesIntoInputs, 4, "vjp"),
    (_ReadsDense, 5, "vjp"),
    (_ReadsGaps, 5, "vjp"),
    (_ReadsExpanded, 5, "vjp"),
)


def _wrong(subject: Subject) -> tuple[Mutant, ...]:
    made = []
    for kind, offset, call in _WRONG:
        if kind is _ReadsExpanded and subject.op not in SUMMED:
            continue
        kernel = kind(_RIGHT[subject.op], call)
        where = " in the gradient" if call == "vjp" else ""
        name = f"{subject.op}, {kind.__name__.removeprefix('_')}{where}"
        made.append(
            Mutant(
                implementation=numpy_implementation(name, subject.op, kernel),
                fault=str(kind.__doc__).replace(".", f"{where}."),
                killers=(f"{subject.prefix}-{subject.first + offset}",),
            )
        )
    return tuple(made)


def _grouped(op: str) -> tuple[Mutant, ...]:
    """Kernels that write into special inputs only."""
    subject = next(each for each in SUBJECTS if each.op == op)
    kinds: dict[str, Callable[[str], _Changed]] = {
        f"Canonicalises {kind}": functools.partial(_Canonicalises, _RIGHT[op], kind=kind)
        for kind in ("NaN", "Inf", "-0", "subnormal")
    }
    if op == "grouped_matmul":
        kinds["OffsetsInPlace"] = functools.partial(_OffsetsInPlace, _RIGHT[op])
    made = []
    for kind, make in kinds.items():
        for number, call in ((1, "value"), (4, "vjp")):
            kernel, name = make(call), f"{op}, {kind} of {call}"
            made.append(
                Mutant(
                    implementation=numpy_implementation(name, op, kernel),
                    fault=f"{kernel.__doc__} ({kind} of {call})",
                    killers=(f"{subject.prefix}-{subject.first + number}",),
                )
            )
    return tuple(made)


def _of_plan(kernel: type[Plan], killer: str) -> Mutant:
    name = f"plan, {kernel.__name__.removeprefix('_')}"
    mine = numpy_implementation(name, "plan", kernel(), capacity=True)
    return Mutant(implementation=mine, fault=str(kernel.__doc__), killers=(killer,))


def _contiguous(op: str) -> Implementation:
    """Right for what it declares to take."""
    kernel = _ReadsDense(_RIGHT[op], "value", "vjp")
    return numpy_implementation(f"{op}, Contiguous", op, kernel, contiguous=True)


# By operation.
MUTANTS: dict[str, tuple[Mutant, ...]] = {subject.op: _wrong(subject) for subject in SUBJECTS}
MUTANTS["grouped_matmul"] += _grouped("grouped_matmul")
MUTANTS["grouped_matmul_mx"] += _grouped("grouped_matmul_mx")
MUTANTS["plan"] += (
    _of_plan(_OnlyTheLastPlan, "PLN-50"),
    _of_plan(_OnePlanOneUse, "PLN-56"),
    _of_plan(_OneUseOfRoom, "PLN-57"),
)
CORRECT: dict[str, Implementation] = {op: _contiguous(op) for op in _RIGHT}
