"""Wrong `dispatch_combine`s: rows lost, doubled, or somewhere else."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange, Sent, ragged_all_to_all
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation


def of_exchange(kernel: type[Exchange], *killers: str, seen: str = "", **declared: Any) -> Mutant:
    """A mutant called after its class, whose docstring is its fault."""
    name = f"dispatch_combine, {kernel.__name__}"
    return Mutant(
        implementation=numpy_implementation(name, "dispatch_combine", kernel(), **declared),
        fault=kernel.__doc__ or "",
        killers=killers,
        seen=seen,
    )


def selected(sent: Sent, rows: np.ndarray) -> Sent:
    """Some of the rows."""
    goal = sent.goal[rows]
    return Sent(
        rank=sent.rank,
        token=sent.token[rows],
        goal=goal,
        slot=sent.slot[rows],
        experts=sent.experts[rows],
        weights=sent.weights[rows],
        sizes=np.bincount(goal, minlength=len(sent.sizes)),
    )


class SenderOffsets(Exchange):
    """A block lands at the receiver where it began at the sender."""

    def at_receiver(self, sizes):
        return self.at_sender(sizes)


class AverageBuckets(Exchange):
    """A receiver has twice the average room for each sender, and a busy one writes past it."""

    def at_receiver(self, sizes):
        bucket = -(-2 * sizes.sum() // sizes.size)
        return np.broadcast_to((np.arange(len(sizes)) * bucket)[:, None], sizes.shape)

    def dispatch(self, operands, sizes):
        offsets = (self.at_sender(sizes), self.at_receiver(sizes))
        return ragged_all_to_all(operands, sizes, *offsets, self.room(sizes))


class DropsExcess(Exchange):
    """A rank sends twice the average to another at most, and does not say what it dropped."""

    def pack(self, rank, experts, weights, home, ranks):
        sent = super().pack(rank, experts, weights, home, ranks)
        room = -(-2 * len(sent.goal) // ranks)
        place = np.arange(len(sent.goal)) - (np.cumsum(sent.sizes) - sent.sizes)[sent.goal]
        return selected(sent, place < room)


class ForgetsItself(Exchange):
    """What stays on a rank is not computed, since it is not sent."""

    def combine(self, sent, back, shape):
        return super().combine(sent, np.where((sent.goal == sent.rank)[:, None], 0, back), shape)


class OneExpertOfRank(Exchange):
    """A token that goes to a rank once brings one expert along, though it has two there."""

    def pack(self, rank, experts, weights, home, ranks):
        sent = super().pack(rank, experts, weights, home, ranks)
        first = (sent.experts >= 0).argmax(axis=1)[:, None] == np.arange(experts.shape[1])
        sent.experts = np.where(first, sent.experts, -1)
        return sent


class CompactsSlots(Exchange):
    """A rank keeps as many slots of a token as it has experts: a repeated one needs more."""

    def home(self, ids, num_experts, ranks):
        self.own = -(-num_experts // ranks)
        return super().home(ids, num_experts, ranks)

    def pack(self, rank, experts, weights, home, ranks):
        sent = super().pack(rank, experts, weights, home, ranks)
        filled = sent.experts >= 0
        sent.experts = np.where(np.cumsum(filled, axis=1) <= self.own, sent.experts, -1)
        return sent


class CountsOnce(Exchange):
    """An expert that a token names twice counts once."""

    def pack(self, rank, experts, weights, home, ranks):
        first = (experts[:, :, None] == experts[:, None, :]).argmax(axis=2)
        home = np.where(first == np.arange(experts.shape[1]), home, -1)
        return super().pack(rank, experts, weights, home, ranks)


class TwoSlots(Exchange):
    """Only the first two slots of a token travel."""

    def pack(self, rank, experts, weights, home, ranks):
        home = np.where(np.arange(experts.shape[1]) < 2, home, -1)
        return super().pack(rank, experts, weights, home, ranks)


class Wraps(Exchange):
    """-1 indexes the last expert: an empty slot is computed by it."""

    def arrived(self, x, experts, weights, num_experts):
        return super().arrived(x, experts % num_experts, weights, num_experts)


class FirstExpertIsNobody(Exchange):
    """Expert 0 is read as an empty slot."""

    def home(self, ids, num_experts, ranks):
        return np.where(ids > 0, super().home(ids, num_experts, ranks), -1)


class LosesRemainder(Exchange):
    """Each rank has experts // ranks experts, and what is left over has no rank."""

    def home(self, ids, num_experts, ranks):
        own = max(num_experts // ranks, 1)
        return np.where((ids >= 0) & (ids < own * ranks), ids // own, -1)


class Remembers(Exchange):
    """The number of experts on a rank is that of the first call."""

    own = 0

    def home(self, ids, num_experts, ranks):
        self.own = self.own or -(-num_experts // ranks)
        return np.where(ids >= 0, ids // self.own, -1)


class LocalIds(Exchange):
    """An expert's number on its rank is taken for its number among all."""

    def home(self, ids, num_experts, ranks):
        self.own = -(-num_experts // ranks)
        return super().home(ids, num_experts, ranks)

    def factor(self, scale, ids, here):
        return super().factor(scale, ids % self.own, here)


class FirstRankTokens(Exchange):
    """Every rank sends the rows of rank 0, by its own indices."""

    def rows(self, sent, x):
        return super().rows(sent, np.broadcast_to(x[:1], x.shape))


class ReturnsBackwards(Exchange):
    """Results come back with the last rank's first, and are read as if the first's were."""

    def give_back(self, operands, sizes):
        back = super().give_back(operands, sizes)
        ends = np.cumsum(sizes, axis=1)
        return [
            np.concatenate(np.split(rows, ends[rank, :-1])[::-1]) for rank, rows in enumerate(back)
        ]


class LastRankOnly(Exchange):
    """Partial sums overwrite each other instead of adding up."""

    def combine(self, sent, back, shape):
        y = np.zeros(shape, back.dtype)
        y[sent.token] = back
        return y


class NeedsRows(Exchange):
    """A rank that gets no rows is an error."""

    def expert_sum(self, rank, x, experts, weights, scale):
        if not len(x):
            raise ValueError("the grouped matmul needs at least one row")
        return super().expert_sum(rank, x, experts, weights, scale)


class SilentRank(Exchange):
    """A rank that sends nothing returns unwritten memory."""

    def combine(self, sent, back, shape):
        return super().combine(sent, back, shape) if len(back) else np.full(shape, np.nan)


class ByteSizes(Exchange):
    """Sizes are exchanged as bytes."""

    def sizes(self, sent):
        return super().sizes(sent).astype(np.uint8).astype(np.int64)

    def combine(self, sent, back, shape):
        lost = np.zeros((len(sent.token) - len(back), shape[-1]), back.dtype)
        return super().combine(sent, np.concatenate([back, lost]), shape)


class ShortOffsets(Exchange):
    """Offsets at the receiver are 16-bit integers, which wrap."""

    def at_receiver(self, sizes):
        return super().at_receiver(sizes).astype(np.int16).astype(np.int64)


class RoundRobin(Exchange):
    """Experts are dealt to the ranks in turn."""

    def home(self, ids, num_experts, ranks):
        return np.where(ids >= 0, ids % ranks, -1)


class ManyColumns(Exchange):
    """Columns past the 64th do not travel."""

    def rows(self, sent, x):
        found = super().rows(sent, x)
        for rows in found:
            rows[:, 64:] = 0
        return found


class SixteenExperts(Exchange):
    """The number of an expert has four bits."""

    def pack(self, rank, experts, weights, home, ranks):
        sent = super().pack(rank, experts, weights, home, ranks)
        kept = np.where(sent.experts >= 0, sent.experts % 16, -1)
        return dataclasses.replace(sent, experts=kept)


MUTANTS: tuple[Mutant, ...] = (
    of_exchange(SenderOffsets, "EXC-01", "EXC-23", "EXC-54"),
    of_exchange(AverageBuckets, "EXC-21", "EXC-22", seen="marin-community/marin#4312"),
    of_exchange(DropsExcess, "EXC-21", "EXC-22", "EXC-54", seen="marin-community/marin#4312"),
    of_exchange(ForgetsItself, "EXC-01", "EXC-10", "EXC-32", "EXC-33"),
    of_exchange(OneExpertOfRank, "EXC-01", "EXC-06", "EXC-07", "EXC-33", "EXC-54"),
    of_exchange(CompactsSlots, "EXC-06", "EXC-55"),
    of_exchange(CountsOnce, "EXC-06", "EXC-28", "EXC-40", "EXC-55"),
    of_exchange(TwoSlots, "EXC-01", "EXC-07", "EXC-39"),
    of_exchange(Wraps, "EXC-04", "EXC-27", "EXC-28", "EXC-56", seen="ROCm/aiter#4636"),
    of_exchange(FirstExpertIsNobody, "EXC-01", "EXC-21", "EXC-37", "EXC-38"),
    of_exchange(LosesRemainder, "EXC-25", seen="vllm-project/vllm#21497"),
    of_exchange(Remembers, "EXC-38"),
    of_exchange(LocalIds, "EXC-01", "EXC-09", "EXC-31", "EXC-37"),
    of_exchange(FirstRankTokens, "EXC-01", "EXC-08", "EXC-31", "EXC-32", "EXC-54"),
    of_exchange(ReturnsBackwards, "EXC-01", "EXC-23", "EXC-51", "EXC-52"),
    of_exchange(LastRankOnly, "EXC-01", "EXC-07", "EXC-33"),
    of_exchange(NeedsRows, "EXC-11", "EXC-21", "EXC-22", "EXC-24", seen="NVIDIA/Megatron-LM#3626"),
    of_exchange(SilentRank, "EXC-04", "EXC-22", "EXC-24", seen="sgl-project/sglang#22455"),
    of_exchange(ByteSizes, "EXC-26", seen="jax-ml/jax#18440"),
    of_exchange(ShortOffsets, "EXC-26", seen="vllm-project/vllm#34279"),
    of_exchange(RoundRobin, "EXC-27", "EXC-28"),
    of_exchange(ManyColumns, "EXC-01"),
    of_exchange(SixteenExperts, "EXC-01"),
)
