"""What is judged: a callable, the operation it claims to be, and what it declares."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from moe_ref._errors import require, require_choice
from moe_ref.conformance._case import Case
from moe_ref.conformance.operations import LIBRARIES, OPERATIONS
from moe_ref.spec import MXSpec, Numerics

Ties = Literal["lowest", "any"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation:
    """A kernel, the operation it computes, and what it declares about itself.

    Attributes:
        name: for reports.
        op: one of `OPERATIONS`, which say what is called with what.
        function: the callable; importable by name, so that it can run in a process of its own.
        vjp: the kernel's own gradient, called as `OPERATIONS[op].gradient` says; None: the library
            differentiates `function`.
        arrays: library of the arrays it takes: `jax`, `numpy` or `torch`.
        dtypes: dtypes it accepts.
        numerics: in which precision it computes, by dtype; where none is given, as moe_ref's own
            executions do (`Numerics.of`).
        mx: the MX format and rules of a kernel that quantises; None: those of `MXSpec()`.
        axis: along which `quantize` has its blocks: -1, the last one, or -2.
        block: how many values share a scale in `quantize`.
        gradients: it can be differentiated; or the inputs it has a gradient of: what is declared
            has to be there. None: find out, but for a `vjp`, which declares all of them.
        multiple_of: dimension to what its size must be a multiple of; for `rows` every group.
        minimum: dimension to its smallest size.
        maximum: dimension to its largest size.
        takes: says of an input whether it is meant for this kernel, by its spec for example; others
            are left out. None: all are.
        ties: equal scores go to the `lowest` index, or to `any`.
        zero_tail: it writes zeros into rows that belong to no group. False: such rows of the
            result, and of the gradient, are not looked at.
        contiguous: it takes dense arrays in C order only: no transposed views, none with gaps.
        zero_rows: it takes inputs without rows or tokens.
        masks: it takes a mask of padding tokens.
        stable: `plan` keeps the order of tokens within an expert.
        capacity: `plan` takes a capacity, a `layer` follows the one of its spec.
        nan_elements: where `quantize` writes the scale 0xFF, which makes a block NaN, the elements
            are NaN too, in formats that have one. False: they are not looked at.
        deterministic: the same input gives the same bits.
        batch_invariant: a token's bits do not depend on the other tokens.
        may_decline: it may refuse an input it does not support, with a TypeError, ValueError or
            NotImplementedError. False: that is a failure.
    """

    name: str
    op: str
    function: Callable[..., Any]
    vjp: Callable[..., Any] | None = None
    arrays: str = "jax"
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    numerics: Mapping[str, Numerics] = dataclasses.field(default_factory=dict)
    mx: MXSpec | None = None
    axis: int = -1
    block: int = 32
    gradients: bool | tuple[str, ...] | None = None
    multiple_of: Mapping[str, int] = dataclasses.field(default_factory=dict)
    minimum: Mapping[str, int] = dataclasses.field(default_factory=dict)
    maximum: Mapping[str, int] = dataclasses.field(default_factory=dict)
    takes: Callable[[Case], bool] | None = None
    ties: Ties = "lowest"
    zero_tail: bool = False
    contiguous: bool = False
    zero_rows: bool = True
    masks: bool = True
    stable: bool = True
    capacity: bool = False
    nan_elements: bool = False
    deterministic: bool = True
    batch_invariant: bool = False
    may_decline: bool = True

    def __post_init__(self):
        require_choice(self.op, "op", OPERATIONS)
        require(callable(self.function), "function", "a callable", repr(self.function))
        callable_vjp = self.vjp is None or callable(self.vjp)
        require(callable_vjp, "vjp", "a callable or None", repr(self.vjp))
        if isinstance(self.gradients, tuple):
            for name in self.gradients:
                # Parameters of a layer are named as they lie in it, "layer.experts.w_in".
                if not (self.op == "layer" and str(name).startswith("layer.")):
                    require_choice(name, "gradients", OPERATIONS[self.op].differentiable)
        require_choice(self.arrays, "arrays", LIBRARIES)
        require_choice(self.ties, "ties", ("lowest", "any"))
        declared = self.mx is None or isinstance(self.mx, MXSpec)
        require(declared, "mx", "an MXSpec or None", repr(self.mx))
        require(self.axis in (-1, -2), "axis", "-1 or -2", self.axis)
        require(self.block >= 1, "block", "at least 1", self.block)
        require(not isinstance(self.dtypes, str), "dtypes", "a tuple of names", repr(self.dtypes))
        require(len(self.dtypes) > 0, "dtypes", "at least one", self.dtypes)
        for dtype in (*self.dtypes, *self.numerics):
            require_choice(dtype, "dtypes", ("bfloat16", "float16", "float32", "float64"))
        for name in ("multiple_of", "minimum", "maximum"):
            for dimension, size in getattr(self, name).items():
                require(
                    dimension in DIMENSIONS and size >= 1,
                    name,
                    f"sizes of at least 1 of {', '.join(DIMENSIONS)}",
                    {dimension: size},
                )

    @property
    def lowest_wins(self) -> bool:
        """Whether equal scores go to the lowest index: a capability some checks are about."""
        return self.ties == "lowest"

    @property
    def any_layout(self) -> bool:
        """Whether arrays may have any strides, which those of JAX do not have."""
        return self.arrays != "jax" and not self.contiguous

    @property
    def autodiff(self) -> bool:
        """Whether its library differentiates it: then a value comes along with each gradient."""
        return self.vjp is None

    def owes_gradient(self, name: str) -> bool:
        """Whether a gradient of this input has to be there."""
        if self.gradients is None:
            return self.vjp is not None
        return self.has_gradient(name)

    def has_gradient(self, name: str) -> bool:
        """Whether a gradient of this input may be asked for."""
        if isinstance(self.gradients, tuple):
            return name in self.gradients
        return self.gradients is not False

    def fitted(self, case: Case) -> Case | None:
        """The case as this kernel can take it: dimensions rounded up; None: it cannot."""
        operation = OPERATIONS[self.op]
        own = case if operation.declared is None else operation.declared(case, self)
        if own is None:
            return None
        case = own
        if self.multiple_of and operation.fit is not None:
            rounded = operation.fit(case, dict(self.multiple_of))
            if rounded is None:
                return None
            case = rounded
        for dimension, size in operation.sizes(case).items():
            unit, low = self.multiple_of.get(dimension, 1), self.minimum.get(dimension, 0)
            if size % unit or not low <= size <= self.maximum.get(dimension, size):
                return None
            if size == 0 and dimension in ("rows", "tokens") and not self.zero_rows:
                return None
        if case.has("mask") and not self.masks:
            return None
        if self.takes is not None and not self.takes(case):
            return None
        return dataclasses.replace(case, numerics=self.numerics.get(case.dtype), mx=self.mx)


DIMENSIONS = ("rows", "experts", "k", "n", "tokens", "d_model", "d_hidden", "ranks")
