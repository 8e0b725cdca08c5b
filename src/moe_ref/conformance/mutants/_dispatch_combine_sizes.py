"""Wrong `dispatch_combine`s: right for few tokens, experts, slots or ranks, and wrong for more."""

import dataclasses

import numpy as np

from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._dispatch_combine_rows import of_exchange
from moe_ref.conformance.mutants._mutant import Mutant


class ByteOfExpert(Exchange):
    """The number of an expert has eight bits."""

    def factor(self, scale, ids, here):
        return super().factor(scale, ids % 256, here)


class ByteOfExpertBack(Exchange):
    """The gradient takes the expert whose number has eight bits."""

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        ids = np.where(experts >= 0, experts % 256, -1)
        return super().expert_vjp(rank, x, ids, weights, dy, scale)


class EightSlots(Exchange):
    """The first eight slots of a token travel."""

    def pack(self, rank, experts, weights, home, ranks):
        home = np.where(np.arange(experts.shape[1]) < 8, home, -1)
        return super().pack(rank, experts, weights, home, ranks)


class EightSlotsBack(EightSlots):
    """Cotangents travel for the first eight slots of a token."""

    def value(self, x, experts, weights, scale):
        return Exchange().value(x, experts, weights, scale)


class OneTile(Exchange):
    """Of a rank's tokens the first 64 come back."""

    def combine(self, sent, back, shape):
        return super().combine(sent, np.where((sent.token < 64)[:, None], back, 0), shape)


class OneTileBack(Exchange):
    """Of a rank's tokens the first 64 get a gradient."""

    def onto_tokens(self, sent, back, shape):
        return super().onto_tokens(sent, np.where((sent.token < 64)[:, None], back, 0), shape)


class OneBlockOfExperts(Exchange):
    """The gradient of an expert sums over the first 64 rows of a rank."""

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        dx, dw, _ = super().expert_vjp(rank, x, experts, weights, dy, scale)
        few = x[:64], experts[:64], weights[:64], dy[:64]
        return dx, dw, super().expert_vjp(rank, *few, scale)[2]


class CountsOneTile(Exchange):
    """The first 64 tokens of a rank are counted."""

    def traffic(self, sent):
        few = [dataclasses.replace(s, goal=s.goal[s.token < 64]) for s in sent]
        rows = [np.bincount(s.goal, minlength=len(sent)) for s in few]
        copies = [
            np.bincount(s.goal[s.token < 64], (s.experts >= 0).sum(axis=1)[s.token < 64], len(sent))
            for s in sent
        ]
        return {"rows_sent": np.stack(rows), "copies_sent": np.stack(copies).astype(np.int64)}


class LooseOrderOfMany(Exchange):
    """The order of the sum over a rank's slots changes from call to call if there are many."""

    calls = 0

    def expert_sum(self, rank, x, experts, weights, scale):
        self.calls += 1
        slots = experts.shape[1]
        order = np.roll(np.arange(slots), self.calls if slots > 8 else 0)
        return super().expert_sum(rank, x, experts[:, order], weights[:, order], scale)


class FourRanks(Exchange):
    """What comes back from a fifth rank and later ones is lost."""

    def combine(self, sent, back, shape):
        return super().combine(sent, np.where((sent.goal < 4)[:, None], back, 0), shape)


class PairsByXor(Exchange):
    """In round r, rank i exchanges with rank i ^ r: three ranks miss a pair."""

    def combine(self, sent, back, shape):
        met = (sent.goal ^ sent.rank) < len(sent.sizes)
        return super().combine(sent, np.where(met[:, None], back, 0), shape)


class PairsOfColumns(Exchange):
    """Columns come back in pairs: a single one is lost."""

    def combine(self, sent, back, shape):
        return super().combine(sent, back if shape[1] > 1 else 0 * back, shape)


MUTANTS: tuple[Mutant, ...] = (
    of_exchange(ByteOfExpert, "EXC-01"),
    of_exchange(ByteOfExpertBack, "EXC-51", "EXC-52", "EXC-53"),
    of_exchange(EightSlots, "EXC-01", "EXC-28"),
    of_exchange(EightSlotsBack, "EXC-51", "EXC-52", "EXC-53"),
    of_exchange(OneTile, "EXC-01"),
    of_exchange(OneTileBack, "EXC-51"),
    of_exchange(OneBlockOfExperts, "EXC-53"),
    of_exchange(CountsOneTile, "EXC-27", "EXC-28"),
    of_exchange(LooseOrderOfMany, "EXC-13"),
    of_exchange(FourRanks, "EXC-25"),
    of_exchange(PairsByXor, "EXC-25"),
    of_exchange(PairsOfColumns, "EXC-10"),
)
