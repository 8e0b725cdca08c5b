"""Losses that are right for few tokens, experts or choices, and wrong for more."""

import numpy as np

from moe_ref.conformance.mutants import _losses_counts as counts
from moe_ref.conformance.mutants import _losses_gradients as gradients
from moe_ref.conformance.mutants import _losses_values as values
from moe_ref.conformance.mutants._beyond import ManyExperts, beyond
from moe_ref.conformance.mutants._losses_kernel import Losses, of_losses
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation

_BLOCK = 256


class ByteOfExpert(Losses):
    """The load is counted by the lower eight bits of an id."""

    def load(self, experts, real, spec):
        return super().load(np.where(experts < 0, -1, experts % 256), real, spec)


class EightSlots(Losses):
    """The load counts the first eight slots of a token."""

    def load(self, experts, real, spec):
        return super().load(experts[:, :8], real, spec)


class FirstBlock(Losses):
    """The load of many experts is that of the first 256 tokens."""

    def load(self, experts, real, spec):
        few = slice(_BLOCK if spec.num_choices > 64 else None)
        return super().load(experts[few], real[few], spec)


class FirstBlockLearns(Losses):
    """Tokens past the 256th get no gradient."""

    def without_padding(self, dz, real, logits):
        first = np.arange(len(real)) < _BLOCK
        return super().without_padding(dz, real & first, logits)


class FirstExpertsLearn(Losses):
    """Experts past the 256th get no gradient."""

    def without_padding(self, dz, real, logits):
        dz = np.where(np.arange(dz.shape[1]) < _BLOCK, dz, 0)
        return super().without_padding(dz, real, logits)


class LatePaddingLearns(Losses):
    """Padding past the 256th token gets a gradient."""

    def without_padding(self, dz, real, logits):
        return super().without_padding(dz, real | (np.arange(len(real)) >= _BLOCK), logits)


class LatePaddingCounts(Losses):
    """Padding past the 256th token counts in the load."""

    def load(self, experts, real, spec):
        return super().load(experts, real | (np.arange(len(real)) >= _BLOCK), spec)


def _past_experts(wrong: type[Losses], *killers: str) -> Mutant:
    kernel = ManyExperts(Losses(), wrong(), _BLOCK)
    name = f"losses, {wrong.__name__} past {_BLOCK} experts"
    mine = numpy_implementation(name, "losses", kernel)
    fault = beyond(wrong.__doc__, _BLOCK, "experts")
    return Mutant(implementation=mine, fault=fault, killers=killers)


MUTANTS: tuple[Mutant, ...] = (
    of_losses(ByteOfExpert, "LOS-01", "LOS-06", "LOS-07"),
    of_losses(EightSlots, "LOS-01", "LOS-06"),
    of_losses(FirstBlock, "LOS-01", "LOS-06"),
    of_losses(FirstBlockLearns, "LOS-12", "LOS-13", "LOS-16", "LOS-17"),
    of_losses(FirstExpertsLearn, "LOS-12", "LOS-13", "LOS-16", "LOS-17"),
    of_losses(LatePaddingLearns, "LOS-13"),
    of_losses(LatePaddingCounts, "LOS-03"),
    _past_experts(counts.IntegerMean, "LOS-07"),
    _past_experts(values.PaddingHasLoad, "LOS-03"),
    _past_experts(values.PaddingHasZ, "LOS-03"),
    _past_experts(values.LooseOrder, "LOS-23"),
    _past_experts(values.LastTokenLost, "LOS-01", "LOS-18"),
    _past_experts(values.FirstExpertLost, "LOS-01"),
    _past_experts(gradients.PaddingGradientTimesZero, "LOS-13"),
    _past_experts(gradients.OverflowingGradient, "LOS-16"),
    _past_experts(gradients.LogitTimesGradient, "LOS-17"),
)
