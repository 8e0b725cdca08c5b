"""Kernels that keep memory between calls, which find there what another call left."""

import numpy as np

from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._losses_kernel import Losses
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._plan_kernel import Plan
from moe_ref.conformance.mutants._route_kernel import Router

_TILE = 64


def _whole(count: int) -> int:
    return -(-count // _TILE) * _TILE


class Memory:
    """A matrix that only grows.

    Args:
        empty: what new memory holds.
    """

    def __init__(self, empty: float):
        self._empty = empty
        self._held = np.full((0, 0), empty)

    def kept(self, array: np.ndarray) -> np.ndarray:
        """All of it after a matrix was written into its corner."""
        shape = np.maximum([_whole(n) for n in array.shape], self._held.shape)
        grown = np.full(shape, self._empty, array.dtype)
        grown[tuple(map(slice, self._held.shape))] = self._held
        grown[tuple(map(slice, array.shape))] = array
        self._held = grown
        return grown


class KeptLogits(Router):
    """Softmax sums over whole tiles of experts, whose padding a larger call has overwritten."""

    def __init__(self):
        self._memory = Memory(-np.inf)

    def scores(self, z, spec):
        if spec.score != "softmax":
            return super().scores(z, spec)
        tiles = self._memory.kept(z)[: len(z), : _whole(z.shape[1])]
        top = z.max(axis=1, keepdims=True)
        return np.exp(z - top) / np.exp(tiles - top).sum(axis=1, keepdims=True)


class KeptGradient(Router):
    """The gradient of the scores is scattered into memory that is new, but not cleared again."""

    def __init__(self):
        self._memory = Memory(0.0)

    def scatter(self, ds, ids, z):
        whole = self._memory.kept(np.zeros((0, 0), z.dtype))
        held = np.zeros_like(z)
        rows, columns = (min(sizes) for sizes in zip(whole.shape, z.shape, strict=True))
        held[:rows, :columns] = whole[:rows, :columns]
        np.put_along_axis(held, ids, ds.astype(z.dtype), axis=1)
        self._memory.kept(held)
        return held


class KeptCounts(Losses):
    """Whole tiles of tokens are counted, whose padding a larger call has overwritten."""

    def __init__(self):
        self._memory = Memory(-1.0)

    def load(self, experts, real, spec):
        ids = self._memory.kept(np.where(real[:, None], experts, -1))
        tiles = ids[: _whole(len(experts)), : experts.shape[1]]
        inside = (tiles >= 0) & (tiles < spec.num_choices)
        return np.bincount(tiles[inside].astype(np.int64), minlength=spec.num_choices)


class KeptIds(Plan):
    """Whole tiles of tokens are counted, whose padding a larger call has overwritten."""

    def __init__(self):
        self._memory = Memory(-1.0)

    def owner(self, experts, num_experts):
        tiles = self._memory.kept(experts)[len(experts) : _whole(len(experts))]
        tiles = tiles[:, : experts.shape[1]]
        self._more = tiles[(tiles >= 0) & (tiles < num_experts)].astype(np.int64)
        return experts

    def counts(self, owners, num_experts):
        return super().counts(np.concatenate([owners, self._more]), num_experts)


class KeptWeightGradient(Plan):
    """The gradient of an empty slot is what the memory held, which is new, but not cleared."""

    def __init__(self):
        self._memory = Memory(0.0)

    def along(self, dy, x, factor, kept):
        found = super().along(dy, x, factor, kept)
        held = self._memory.kept(np.zeros((0, 0), found.dtype))[: len(kept), : kept.shape[1]]
        held = np.pad(held, [(0, n - m) for n, m in zip(kept.shape, held.shape, strict=True)])
        found = np.where(kept, found, held)
        self._memory.kept(found)
        return found


class KeptSums(Exchange):
    """Partial sums are added to memory that is cleared for larger calls only."""

    def __init__(self):
        self._held = np.zeros((0, 0))

    def combine(self, sent, back, shape):
        if any(n > m for n, m in zip(shape, self._held.shape, strict=True)):
            self._held = np.zeros(shape, back.dtype)
        y = self._held[: shape[0], : shape[1]]
        if y.shape == self._held.shape:
            y[:] = 0
        np.add.at(y, sent.token, back)
        return y.copy()

    def onto_tokens(self, sent, back, shape):
        return self.combine(sent, back, shape)


class Mask:
    """The mask of the last call that had one."""

    def __init__(self):
        self._held: np.ndarray | None = None

    def kept(self, mask: np.ndarray | None, tokens: int) -> np.ndarray | None:
        """It, where a call of as many tokens has none."""
        self._held = self._held if mask is None else mask
        fits = self._held is not None and len(self._held) == tokens
        return self._held if fits else mask


class KeptPadding(Router):
    """A mask stays for the calls of as many tokens that have none."""

    def __init__(self):
        self._mask = Mask()

    def value(self, logits, spec, bias=None, mask=None):
        return super().value(logits, spec, bias, self._mask.kept(mask, len(logits)))


class KeptPaddingOfGradients(Router):
    """A mask stays for the gradients of as many tokens that have none."""

    def __init__(self):
        self._mask = Mask()

    def vjp(self, logits, spec, cotangent, bias=None, mask=None):
        return super().vjp(logits, spec, cotangent, bias, self._mask.kept(mask, len(logits)))


class KeptReal(Losses):
    """Tokens that were padding in a call are so in the calls of as many that have no mask."""

    def __init__(self):
        self._mask = Mask()

    def value(self, logits, experts, spec, mask=None):
        return super().value(logits, experts, spec, self._mask.kept(mask, len(logits)))

    def vjp(self, logits, experts, spec, cotangent, mask=None):
        return super().vjp(logits, experts, spec, cotangent, self._mask.kept(mask, len(logits)))


_WRONG: tuple[tuple[str, type, tuple[str, ...]], ...] = (
    ("route", KeptLogits, ("RTE-37", "RTE-38")),
    ("route", KeptGradient, ("RTE-38",)),
    ("route", KeptPadding, ("RTE-39",)),
    ("route", KeptPaddingOfGradients, ("RTE-40",)),
    ("losses", KeptReal, ("LOS-35", "LOS-36")),
    ("losses", KeptCounts, ("LOS-31", "LOS-32")),
    ("plan", KeptIds, ("PLN-58",)),
    ("plan", KeptWeightGradient, ("PLN-59",)),
    ("dispatch_combine", KeptSums, ("EXC-69", "EXC-70")),
)


def _mutant(op: str, kernel: type, killers: tuple[str, ...]) -> Mutant:
    mine = numpy_implementation(f"{op}, {kernel.__name__}", op, kernel())
    return Mutant(implementation=mine, fault=str(kernel.__doc__), killers=killers)


# By operation.
MUTANTS: dict[str, tuple[Mutant, ...]] = {
    op: tuple(_mutant(*each) for each in _WRONG if each[0] == op) for op, _, _ in _WRONG
}
