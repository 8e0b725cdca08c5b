"""Wrong grouped matmuls of either kind: memory that is kept between calls is not cleared.

It grows along one dimension, is cleared when it does, and is read up to whole tiles of 16: what
lies past the end of a smaller input are numbers of a larger one.
"""

from typing import Any

import numpy as np

from moe_ref.conformance.mutants._grouped_passes import OPS, Arrays, Killers, Pass, wrong
from moe_ref.conformance.mutants._mutant import Mutant

_TILE = 16


class _Kept(Pass):
    def __init__(self, kernel: Any, where: str):
        super().__init__(kernel, where)
        self._memory: dict[Any, np.ndarray] = {}

    def kept(self, name: str, array: np.ndarray, axis: int, fill: float = 0) -> np.ndarray:
        """The array in memory for its other dimensions, with what follows along an axis."""
        moved = np.moveaxis(array, axis, 0)
        whole = -(-len(moved) // _TILE) * _TILE
        key = (name, moved.shape[1:], array.dtype)
        memory = self._memory.get(key)
        if memory is None or len(memory) < whole:
            memory = np.full((whole, *moved.shape[1:]), fill, array.dtype)
            self._memory[key] = memory
        memory[: len(moved)] = moved
        return np.moveaxis(memory[:whole].copy(), 0, axis)


class StaleColumns(_Kept):
    """After a call with a larger k, its numbers fill the last tile of k."""

    def before(self, where, **given):
        return {"x": self.kept("x", given["x"], 1), "w": self.kept("w", given["w"], 1)}


class StaleResultColumns(_Kept):
    """After a call with a larger n, its numbers fill the last tile of n, in which dx sums."""

    def before(self, where, **given):
        names = {"w": 2, "cotangent": 1}
        return {name: self.kept(name, given[name], axis) for name, axis in names.items()}


class StaleRows(_Kept):
    """After a call with more rows, those of its last group are summed into the last dw."""

    def before(self, where, **given):
        if _total(given) < len(given["x"]):  # a tail separates the groups from what follows
            return {}
        rows = {name: self.kept(name, given[name], 0) for name in ("x", "cotangent")}
        sizes = given["group_sizes"].astype(np.int64)
        for last in np.flatnonzero(sizes)[-1:]:
            sizes[last] += len(rows["x"]) - len(given["x"])
        return rows | {"group_sizes": sizes}


class StaleExperts(_Kept):
    """The expert of a row is the number of groups that end before it, those of a call before too.

    Where there are fewer experts than in that call, its offsets are still there.
    """

    def before(self, where, **given):
        experts = len(given["group_sizes"])
        ends = np.cumsum(given["group_sizes"].astype(np.int64))
        every = self.kept("ends", ends, 0, fill=2**62)
        owner = (every[None, :] <= np.arange(_total(given))[:, None]).sum(1)
        owner = np.minimum(owner, experts - 1)
        return {"group_sizes": np.bincount(owner, minlength=experts)}


def _total(given: Arrays) -> int:
    return int(given["group_sizes"].astype(np.int64).sum())


_VALUE, _GRADIENTS = (76, 86), (77, 87)
_WRONG: tuple[tuple[type[Pass], Killers], ...] = (
    (StaleColumns, {"y": _VALUE}),
    (StaleResultColumns, {"dx": _GRADIENTS}),
    (StaleRows, {"dw": _GRADIENTS}),
    (StaleExperts, {"y": _VALUE, "dx": _GRADIENTS, "dw": _GRADIENTS}),
)
# By operation.
MUTANTS: dict[str, tuple[Mutant, ...]] = {
    op: tuple(mutant for fault, killers in _WRONG for mutant in wrong(op, fault, {}, killers))
    for op in OPS
}
