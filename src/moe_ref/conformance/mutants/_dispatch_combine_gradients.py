"""Wrong gradients of `dispatch_combine`."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._dispatch_combine_rows import of_exchange
from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._plan_kernel import wide


class TimesRanks(Exchange):
    """The gradient of x is added up once for every rank: too large by their number."""

    def onto_tokens(self, sent, back, shape):
        return super().onto_tokens(sent, back, shape) * len(sent.sizes)


class ExpertsTimesRanks(Exchange):
    """The gradient of the experts is added up over ranks that all have it already."""

    def over_ranks(self, parts):
        return super().over_ranks(parts) * len(parts)


class MeanOverRanks(Exchange):
    """The gradient of the experts is averaged over ranks."""

    def over_ranks(self, parts):
        return super().over_ranks(parts) / len(parts)


class FirstRankExperts(Exchange):
    """The gradient of the experts is that of the first rank: the sum is missing."""

    def over_ranks(self, parts):
        return parts[0]


class OwnTokensOnly(Exchange):
    """An expert's gradient leaves out the tokens of other ranks."""

    def sizes(self, sent):
        self.latest = super().sizes(sent)
        return self.latest

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        dx, dw, _ = super().expert_vjp(rank, x, experts, weights, dy, scale)
        first = self.at_receiver(self.latest)[rank, rank]
        own = slice(first, first + self.latest[rank, rank])
        ds = super().expert_vjp(rank, x[own], experts[own], weights[own], dy[own], scale)[2]
        return dx, dw, ds


class LastGradient(Exchange):
    """The gradient of x is that of the last rank a token went to."""

    def onto_tokens(self, sent, back, shape):
        dx = np.zeros(shape, back.dtype)
        dx[sent.token] = back
        return dx


class OwnSlice(Exchange):
    """Each rank keeps its own slice of the gradient of x, and what the others found is lost."""

    def onto_tokens(self, sent, back, shape):
        own = (sent.goal == sent.rank)[:, None]
        return super().onto_tokens(sent, np.where(own, back, 0), shape)


class OwnWeightsOnly(Exchange):
    """The gradient of a weight stays on the rank that computed it."""

    def onto_slots(self, sent, back, shape):
        own = (sent.goal == sent.rank)[:, None]
        return super().onto_slots(sent, np.where(own, back, 0), shape)


class FirstSlotOfRank(Exchange):
    """Of the slots that went to a rank in one row, the first gets the gradient of all."""

    def onto_slots(self, sent, back, shape):
        first = (sent.experts >= 0).argmax(axis=1)[:, None] == np.arange(back.shape[1])
        return super().onto_slots(sent, first * back.sum(axis=1, keepdims=True), shape)


class EmptyGradient(Exchange):
    """Empty slots get the gradient that expert 0 would give them."""

    def vjp(self, x, experts, weights, scale, cotangent):
        dx, dw, ds = super().vjp(x, experts, weights, scale, cotangent)
        along = (wide(cotangent) * wide(x)).sum(axis=2, keepdims=True) * wide(scale)[0]
        return dx, np.where(experts < 0, along, dw).astype(dw.dtype), ds


class Unweighted(Exchange):
    """The gradient of x lacks the weights."""

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        _, dw, ds = super().expert_vjp(rank, x, experts, weights, dy, scale)
        dx, _, _ = super().expert_vjp(rank, x, experts, np.ones_like(weights), dy, scale)
        return dx, dw, ds


class ExpertsUnweighted(Exchange):
    """The gradient of the experts lacks the weights."""

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        dx, dw, _ = super().expert_vjp(rank, x, experts, weights, dy, scale)
        return dx, dw, super().expert_vjp(rank, x, experts, np.ones_like(weights), dy, scale)[2]


class RowsBefore(Exchange):
    """The gradient of the weights multiplies the rows as they were before the experts."""

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        dx, _, ds = super().expert_vjp(rank, x, experts, weights, dy, scale)
        return dx, super().expert_vjp(rank, x, experts, weights, dy, np.ones_like(scale))[1], ds


class LastRowOfExpert(Exchange):
    """`ds[ids] += rows` keeps one row of each expert."""

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        dx, dw, ds = super().expert_vjp(rank, x, experts, weights, dy, scale)
        ds[:] = 0
        row, copy = np.nonzero(experts >= 0)
        ds[experts[row, copy]] = weights[row, copy] * (dy * x).sum(axis=1)[row]
        return dx, dw, ds


class Unwritten(Exchange):
    """The gradient of an expert without tokens is what the memory held."""

    def over_ranks(self, parts):
        ds = super().over_ranks(parts)
        return np.where(ds == 0, 1e-3, ds)


class Decays(Exchange):
    """A weight decay of 0 is added to the gradient of the experts, which a NaN survives."""

    def vjp(self, x, experts, weights, scale, cotangent):
        dx, dw, ds = super().vjp(x, experts, weights, scale, cotangent)
        return dx, dw, ds + 0 * scale


class OneHotBack(Exchange):
    """The gradient of x is a product with zeros and ones: a NaN reaches all of a rank."""

    def onto_tokens(self, sent, back, shape):
        return super().onto_tokens(sent, back, shape) + 0 * back.sum(axis=0, keepdims=True)


class NarrowCotangent(Exchange):
    """What travels is rounded to bfloat16 on the way, forwards too little to be seen."""

    def rows(self, sent, x):
        return [wide(rows.astype(ml_dtypes.bfloat16)) for rows in super().rows(sent, x)]

    def value(self, x, experts, weights, scale):
        return Exchange().value(x, experts, weights, scale)


class TokenBefore(Exchange):
    """Cotangents are sent in the order of the rows before, one token off."""

    def vjp(self, x, experts, weights, scale, cotangent):
        return super().vjp(x, experts, weights, scale, np.roll(cotangent, 1, axis=1))


class Unsigned(Exchange):
    """The gradients of weights and experts add products without their signs."""

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        dx, _, _ = super().expert_vjp(rank, x, experts, weights, dy, scale)
        return dx, *super().expert_vjp(rank, abs(x), experts, weights, abs(dy), scale)[1:]


class ZeroIsEmpty(Exchange):
    """A filled slot of weight 0 is taken for an empty one: its weight has gradient 0."""

    def vjp(self, x, experts, weights, scale, cotangent):
        dx, dw, ds = super().vjp(x, experts, weights, scale, cotangent)
        return dx, np.where(weights == 0, 0, dw).astype(dw.dtype), ds


class ZeroIsIdle(Exchange):
    """An expert whose factor is 0 is taken for one without tokens: its gradient is 0."""

    def vjp(self, x, experts, weights, scale, cotangent):
        dx, dw, ds = super().vjp(x, experts, weights, scale, cotangent)
        return dx, dw, np.where(scale == 0, 0, ds).astype(ds.dtype)


MUTANTS: tuple[Mutant, ...] = tuple(
    of_exchange(kernel, *killers, seen=seen)
    for kernel, killers, seen in (
        (TimesRanks, ("EXC-51", "EXC-55", "EXC-60", "EXC-61"), "pytorch/pytorch#160285"),
        (ExpertsTimesRanks, ("EXC-53", "EXC-61"), "pytorch/pytorch#160285"),
        (MeanOverRanks, ("EXC-53", "EXC-61"), ""),
        (FirstRankExperts, ("EXC-53", "EXC-61"), "NVIDIA-NeMo/Automodel#1260"),
        (OwnTokensOnly, ("EXC-53", "EXC-61"), ""),
        (LastGradient, ("EXC-51", "EXC-55", "EXC-61"), ""),
        (OwnSlice, ("EXC-51", "EXC-60", "EXC-61"), "NVIDIA/TransformerEngine#2912"),
        (OwnWeightsOnly, ("EXC-52", "EXC-55", "EXC-60", "EXC-61"), ""),
        (FirstSlotOfRank, ("EXC-52", "EXC-54", "EXC-55"), ""),
        (EmptyGradient, ("EXC-56",), "vllm-project/vllm#46408"),
        (Unweighted, ("EXC-51", "EXC-55", "EXC-60"), ""),
        (ExpertsUnweighted, ("EXC-53", "EXC-54"), ""),
        (RowsBefore, ("EXC-52", "EXC-55", "EXC-60"), ""),
        (LastRowOfExpert, ("EXC-53", "EXC-54"), ""),
        (Unwritten, ("EXC-58",), "openxla/tokamax#887"),
        (Decays, ("EXC-58",), ""),
        (OneHotBack, ("EXC-59",), ""),
        (NarrowCotangent, ("EXC-51", "EXC-52"), ""),
        (TokenBefore, ("EXC-51", "EXC-52", "EXC-60"), ""),
        (Unsigned, ("EXC-52", "EXC-53", "EXC-54"), ""),
        (ZeroIsEmpty, ("EXC-52",), ""),
        (ZeroIsIdle, ("EXC-53",), ""),
    )
)
