"""Routers that are right for few tokens, experts or choices, and wrong for more."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance.mutants import _route_choice as choice
from moe_ref.conformance.mutants import _route_gradients as gradients
from moe_ref.conformance.mutants._beyond import ManyExperts, beyond
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._route_kernel import Router, of_route
from moe_ref.conformance.mutants._route_precision import BatchOrder, LooseOrder

_RIGHT = Router()


class _ManyTokens:
    """Tokens past a limit are routed by another kernel."""

    def __init__(self, wrong: Router, limit: int):
        self._wrong = wrong
        self._limit = limit

    def value(self, logits: np.ndarray, spec: Any, bias: Any = None, mask: Any = None) -> Any:
        """Ids and weights."""
        parts = [
            kernel.value(logits[rows], spec, bias, None if mask is None else mask[rows])
            for kernel, rows in self._parts(logits)
        ]
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))

    def vjp(
        self, logits: np.ndarray, spec: Any, cotangent: Any, bias: Any = None, mask: Any = None
    ) -> Any:
        """Gradients."""
        found = [
            kernel.vjp(
                logits[rows], spec, cotangent[rows], bias, None if mask is None else mask[rows]
            )
            for kernel, rows in self._parts(logits)
        ]
        dz = np.concatenate([each[0] for each in found])
        return (dz,) if bias is None else (dz, sum(each[1] for each in found))

    def _parts(self, logits: np.ndarray) -> Iterator[tuple[Router, slice]]:
        yield _RIGHT, slice(None, self._limit)
        if len(logits) > self._limit:
            yield self._wrong, slice(self._limit, None)


class ByteOfIndex(Router):
    """Ties are broken by the lower eight bits of the index."""

    def best(self, c, k):
        c = np.where(np.isnan(c), np.inf, c)
        index = np.broadcast_to(np.arange(c.shape[1]) % 256, c.shape)
        return np.lexsort((index, -c), axis=1)[:, :k]


class SevenBitsOfIndex(Router):
    """Ties are broken by the lower seven bits of the index."""

    def best(self, c, k):
        c = np.where(np.isnan(c), np.inf, c)
        index = np.broadcast_to(np.arange(c.shape[1]) % 128, c.shape)
        return np.lexsort((index, -c), axis=1)[:, :k]


class SixteenFromTheLeft(Router):
    """Of equal scores the lower index is chosen sixteen times, and then the higher."""

    def best(self, c, k):
        first = super().best(c, min(k, 16))
        rest = np.where(np.isnan(c), np.inf, c)
        np.put_along_axis(rest, first, -np.inf, axis=1)
        return np.hstack([first, choice.HighestWins().best(rest, k - first.shape[1])])


class EightFromTheLeft(Router):
    """Of equal scores the lower index is chosen eight times, and then the higher."""

    def best(self, c, k):
        first = super().best(c, min(k, 8))
        rest = np.where(np.isnan(c), np.inf, c)
        np.put_along_axis(rest, first, -np.inf, axis=1)
        return np.hstack([first, choice.HighestWins().best(rest, k - first.shape[1])])


class WarpOfAGroup(Router):
    """A group is scored by its first 32 experts."""

    def group_scores(self, groups, spec):
        return super().group_scores(groups[:, :, :32], spec)


class ByteOfExpert(Router):
    """The slots' gradients go to experts whose numbers have eight bits."""

    def scatter(self, ds, ids, z):
        return super().scatter(ds, ids % 256, z)


class SixteenSlots(Router):
    """The gradient of slots past the sixteenth is lost."""

    def scatter(self, ds, ids, z):
        return super().scatter(ds[:, :16], ids[:, :16], z)


class BlockOfExperts(Router):
    """The gradient of softmax sums over the first 256 experts."""

    def softmax_pull(self, p, dp):
        return p * (dp - self.total((dp * p)[:, :256]))


class EmptyTile(Router):
    """A later tile of 128 tokens that has only padding is left as the memory was."""

    def finished(self, ids, w, mask, logits):
        ids, w = super().finished(ids, w, mask, logits)
        unwritten = self._unwritten(mask, len(ids))
        return np.where(unwritten, 0, ids), np.where(unwritten, 0, w).astype(w.dtype)

    def without_padding(self, dz, mask, logits):
        dz = super().without_padding(dz, mask, logits)
        return np.where(self._unwritten(mask, len(dz)), np.nan, dz).astype(dz.dtype)

    def _unwritten(self, mask, tokens):
        tile = np.arange(tokens) // 128
        real = np.ones(tokens, bool) if mask is None else mask
        some = np.bincount(tile, real, minlength=1)[tile] > 0
        return (~some & (tile > 0))[:, None]


def _past_experts(wrong: type[Router], limit: int, *killers: str, **declared: Any) -> Mutant:
    kernel = ManyExperts(_RIGHT, wrong(), limit)
    name = f"route, {wrong.__name__} past {limit} experts"
    mine = numpy_implementation(name, "route", kernel, **declared)
    fault = beyond(wrong.__doc__, limit, "experts")
    return Mutant(implementation=mine, fault=fault, killers=killers)


def _past_tokens(wrong: type[Router], limit: int, *killers: str) -> Mutant:
    name = f"route, {wrong.__name__} past {limit} tokens"
    mine = numpy_implementation(name, "route", _ManyTokens(wrong(), limit))
    fault = beyond(wrong.__doc__, limit, "tokens")
    return Mutant(implementation=mine, fault=fault, killers=killers)


# Experts past which they are wrong: 128 where the check that kills them has 256 and no more.
_CHOICE: tuple[tuple[type[Router], int, tuple[str, ...]], ...] = (
    (choice.HighestWins, 256, ("RTE-02",)),
    (choice.RemovesEquals, 256, ("RTE-02", "RTE-13")),
    (choice.NegativeZeroIsLess, 256, ("RTE-36",)),
    (choice.HighestGroupWins, 256, ("RTE-02",)),
    (choice.RejectedGetZero, 128, ("RTE-03",)),
    (choice.RepeatsOnNan, 256, ("RTE-05",)),
    (choice.NanSpreads, 256, ("RTE-05",)),
    (choice.IgnoresMask, 256, ("RTE-06",)),
    (choice.MaskMultiplies, 256, ("RTE-06",)),
)
_GRADIENTS: tuple[tuple[type[Router], int, tuple[str, ...]], ...] = (
    (gradients.Detached, 256, ("RTE-10", "RTE-18", "RTE-19", "RTE-20")),
    (gradients.SlotsReversed, 256, ("RTE-10",)),
    (gradients.BiasLearns, 128, ("RTE-10",)),
    (gradients.PaddingLearns, 256, ("RTE-12",)),
    (gradients.PaddingTimesZero, 256, ("RTE-12",)),
    (gradients.SingleLearns, 256, ("RTE-17",)),
    (gradients.LogitTimesGradient, 256, ("RTE-18",)),
    (gradients.SquaredDenominator, 128, ("RTE-19",)),
    (gradients.GradientSpreads, 256, ("RTE-20",)),
)
MUTANTS: tuple[Mutant, ...] = (
    of_route(ByteOfIndex, "RTE-02"),
    of_route(SevenBitsOfIndex, "RTE-02"),
    of_route(SixteenFromTheLeft, "RTE-02"),
    of_route(EightFromTheLeft, "RTE-02"),
    of_route(WarpOfAGroup, "RTE-01", "RTE-02"),
    of_route(ByteOfExpert, "RTE-10"),
    of_route(SixteenSlots, "RTE-10"),
    of_route(BlockOfExperts, "RTE-10", "RTE-19"),
    of_route(EmptyTile, "RTE-06", "RTE-12"),
    *(_past_tokens(wrong, 256, *killers) for wrong, _, killers in (*_CHOICE, *_GRADIENTS)),
    *(_past_experts(wrong, limit, *killers) for wrong, limit, killers in (*_CHOICE, *_GRADIENTS)),
    _past_experts(LooseOrder, 256, "RTE-28"),
    _past_experts(BatchOrder, 256, "RTE-27", batch_invariant=True),
)
