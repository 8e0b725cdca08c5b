"""Wrong grouped matmuls of either kind: one pass misreads sizes, or fails from some size on.

A right kernel is called with other arrays for the value, or for one of the gradients, or what it
gives is changed.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import Kernel
from moe_ref.conformance.mutants._grouped_mx_kernel import Kernel as BlockKernel
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation

Arrays = dict[str, np.ndarray]
# By operation: the prefix of its checks, and a kernel that is right.
OPS = {"grouped_matmul": ("GRP", Kernel()), "grouped_matmul_mx": ("MXG", BlockKernel())}


class Pass:
    """A right kernel but for one pass: the value, `y`, or the gradient `dx` or `dw`."""

    declared: ClassVar[dict[str, Any]] = {}

    def __init__(self, kernel: Any, where: str, **how: Any):
        self._kernel = kernel
        self._where = where
        self.how = how

    def value(self, x: Any, w: Any, group_sizes: Any) -> Any:
        """The result."""
        given = {"x": x, "w": w, "group_sizes": group_sizes}
        return self._through("y", self._kernel.value, given)

    def vjp(self, x: Any, w: Any, group_sizes: Any, cotangent: Any) -> tuple[Any, ...]:
        """The gradients of x and of w."""
        given = {"x": x, "w": w, "group_sizes": group_sizes, "cotangent": cotangent}
        return (
            self._through("dx", lambda **one: self._kernel.vjp(**one)[0], given),
            self._through("dw", lambda **one: self._kernel.vjp(**one)[1], given),
        )

    def _through(self, where: str, call: Callable[..., np.ndarray], given: Arrays) -> np.ndarray:
        if where != self._where:
            return call(**given)
        with np.errstate(all="ignore"):
            result = call(**given | self.before(where, **given))
            return self.after(where, result, given)

    def before(self, where: str, **given: np.ndarray) -> Arrays:
        """The arrays that this pass is given instead of those of the same names."""
        return {}

    def after(self, where: str, result: np.ndarray, given: Arrays) -> np.ndarray:
        """What this pass hands out."""
        return result


class Offsets(Pass):
    """Offsets are kept in the integer type of the sizes, if it is of so many bits: they wrap."""

    def before(self, where, **given):
        sizes = given["group_sizes"]
        if 8 * sizes.itemsize != self.how["bits"]:
            return {}
        ends = np.cumsum(sizes, dtype=sizes.dtype).astype(np.int64)
        return {"group_sizes": np.diff(ends, prepend=0).clip(0)}


class SignedSizes(Pass):
    """Sizes without a sign are read as if they had one, and negative ones count as 0."""

    def before(self, where, **given):
        sizes = given["group_sizes"]
        return {"group_sizes": sizes.view(f"i{sizes.itemsize}").clip(0)}


class HalvesOfSizes(Pass):
    """Sizes of 64 bits are read as twice as many of 32."""

    def before(self, where, **given):
        sizes = given["group_sizes"]
        return {"group_sizes": sizes.view(np.int32)[: len(sizes)]} if sizes.itemsize == 8 else {}


class EightBitsOfExpert(Pass):
    """The number of an expert has eight bits: the weights, or their gradients, are others."""

    def before(self, where, **given):
        return {"w": given["w"][np.arange(len(given["w"])) % 256]}

    def after(self, where, result, given):
        return result[np.arange(len(result)) % 256] if where == "dw" else result


class ShortSums(Pass):
    """Of a sum, the terms past 1024 are dropped."""

    def before(self, where, **given):
        x, w = given["x"].copy(), given["w"].copy()
        if where == "y":
            w[:, 1024:] = 0
        elif where == "dx":
            w[:, :, 1024:] = 0
        for start, stop in _groups(given) if where == "dw" else ():
            x[start + 1024 : stop] = 0
        return {"x": x, "w": w}


class FewColumns(Pass):
    """Columns past so many, along k or n, are not written and hold 0."""

    def after(self, where, result, given):
        whole = result.copy()
        along = ("kn" if where == "dw" else "k" if where == "dx" else "n").index(self.how["along"])
        rest = (slice(None),) * (along + 1) + (slice(self.how["most"], None),)
        whole[rest] = 0
        return whole


class LongTailInLastGroup(Pass):
    """A tail of more than 128 rows is taken for rows of the last expert."""

    def before(self, where, **given):
        sizes, tail = given["group_sizes"].copy(), len(given["x"]) - _total(given)
        sizes[-1:] += tail * (tail > 128)
        return {"group_sizes": sizes}


class ShortZeros(Pass):
    """Zeros are declared in the tail, and written into its first 128 rows."""

    declared: ClassVar = {"zero_tail": True}

    def after(self, where, result, given):
        whole, total = result.copy(), _total(given)
        whole[total:] = 0
        whole[total + 128 :] = 3
        return whole


class NothingButTail(Pass):
    """Zeros are declared in the tail, and not written where all groups are empty."""

    declared: ClassVar = {"zero_tail": True}

    def after(self, where, result, given):
        whole, total = result.copy(), _total(given)
        whole[total:] = 0 if total else 7
        return whole


class EmptyEnd(Pass):
    """Without a tail, an empty group at one end alone hides the row that is next to it."""

    def before(self, where, **given):
        x, cotangent = given["x"].copy(), given.get("cotangent")
        hidden = self._hidden(given)
        x[hidden] = 0
        if cotangent is None:
            return {"x": x}
        cotangent = cotangent.copy()
        cotangent[hidden] = 0
        return {"x": x, "cotangent": cotangent}

    def _hidden(self, given: Arrays) -> slice:
        sizes, first = given["group_sizes"], self.how["end"] == "first"
        near, far = (sizes[:1], sizes[-1:]) if first else (sizes[-1:], sizes[:1])
        if _total(given) < len(given["x"]) or near.any() or not far.any():
            return slice(0)
        return slice(1) if first else slice(-1, None)


def _total(given: Arrays) -> int:
    return int(given["group_sizes"].astype(np.int64).sum())


def _groups(given: Arrays) -> list[tuple[int, int]]:
    ends = np.cumsum(given["group_sizes"].astype(np.int64)).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


# Passes and the numbers of the checks made for them, of `grouped_matmul` and `grouped_matmul_mx`;
# 0: there is none.
Killers = dict[str, tuple[int, int]]
_TYPES: Killers = {"y": (14, 83), "dx": (72, 84), "dw": (72, 84)}
_LARGE: Killers = {"y": (2, 11), "dx": (31, 41), "dw": (32, 42)}
_BACK: Killers = {where: _LARGE[where] for where in ("dx", "dw")}
_ZEROS: Killers = {"y": (9, 16), "dx": (38, 57)}
_ENDS: Killers = {"y": (4, 6), "dx": (31, 35), "dw": (32, 36)}
_WRONG: tuple[tuple[type[Pass], dict[str, Any], Killers], ...] = (
    (Offsets, {"bits": 8}, _TYPES),
    (Offsets, {"bits": 16}, {"y": (14, 83), "dx": (72, 0), "dw": (72, 0)}),
    (SignedSizes, {}, _TYPES),
    (HalvesOfSizes, {}, _TYPES | {"y": (29, 83)}),
    (EightBitsOfExpert, {}, {"y": (7, 12), "dx": (31, 43), "dw": (32, 44)}),
    (ShortSums, {}, _LARGE),
    (FewColumns, {"along": "k", "most": 1024}, _BACK),
    (FewColumns, {"along": "n", "most": 512}, {n: _LARGE[n] for n in ("y", "dw")}),
    (LongTailInLastGroup, {}, {"dw": (37, 46)}),
    (ShortZeros, {}, _ZEROS),
    (NothingButTail, {}, _ZEROS),
    (EmptyEnd, {"end": "first"}, _ENDS),
    (EmptyEnd, {"end": "last"}, _ENDS),
)


def wrong(op: str, fault: type[Pass], how: dict[str, Any], killers: Killers) -> list[Mutant]:
    """The mutants of one fault, each with the pass that has it."""
    (prefix, kernel), number = OPS[op], list(OPS).index(op)
    made = []
    for where, numbers in killers.items():
        if not numbers[number]:
            continue
        about = " ".join(str(each) for each in (where, *how.values()))
        mine = fault(kernel, where, **how)
        name = f"{op}, {fault.__name__} {about}"
        made.append(
            Mutant(
                implementation=numpy_implementation(name, op, mine, **fault.declared),
                fault=f"{' '.join(str(fault.__doc__).split())} ({about})",
                killers=(f"{prefix}-{numbers[number]:02d}",),
            )
        )
    return made


# By operation.
MUTANTS: dict[str, tuple[Mutant, ...]] = {
    op: tuple(mutant for row in _WRONG for mutant in wrong(op, *row)) for op in OPS
}
