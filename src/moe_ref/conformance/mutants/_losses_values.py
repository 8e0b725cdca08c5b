"""Losses that are wrong in value."""

import numpy as np

from moe_ref.conformance.mutants._losses_kernel import Losses, of_losses
from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._route_kernel import narrow


class PaddingHasLoad(Losses):
    """Padding tokens count in the load."""

    def load(self, experts, real, spec):
        return super().load(experts, np.ones_like(real), spec)


class PaddingHasProbability(Losses):
    """Padding tokens enter the mean probability."""

    def over_tokens(self, x, real):
        return x.sum(axis=0)

    def z_loss(self, z, real):
        return super().over_tokens(self.log_sum_exp(z) ** 2, real)[0] / self.tokens(real)


class PaddingHasZ(Losses):
    """Padding tokens enter the z loss, with logits of 0."""

    def z_loss(self, z, real):
        return (self.log_sum_exp(z) ** 2).sum() / self.tokens(real)


class AllTokens(Losses):
    """Means are over all tokens, padding included."""

    def tokens(self, real):
        return float(max(len(real), 1))


class PaddingTimesZero(Losses):
    """Padding is multiplied by 0, which leaves its NaNs."""

    def read(self, z, real):
        return z

    def over_tokens(self, x, real):
        return (x * real[:, None]).sum(axis=0)


class PaddingAtTheEnd(Losses):
    """The mask is read as a count: the first tokens are taken for the real ones."""

    def value(self, logits, experts, spec, mask=None):
        first = None if mask is None else np.arange(len(mask)) < mask.sum()
        return super().value(logits, experts, spec, first)


class MeanOfNothing(Losses):
    """The mean over no tokens is 0 / 0."""

    def tokens(self, real):
        return float(real.sum())


class NotDividedByK(Losses):
    """The fractions of slots sum to k, and so the loss is k at balance."""

    def fractions(self, load, real, spec):
        return super().fractions(load, real, spec) * spec.k


class FilledSlots(Losses):
    """Fractions are of the filled slots, not of T k."""

    def fractions(self, load, real, spec):
        return load / max(load.sum(), 1)


class NotTimesExperts(Losses):
    """The balance loss lacks the number of experts."""

    def balance(self, p, load, real, spec):
        return super().balance(p, load, real, spec) / spec.num_choices


class SquareOfLoad(Losses):
    """The balance loss is the sum of squared fractions, without probabilities."""

    def balance(self, p, load, real, spec):
        return spec.num_choices * (self.fractions(load, real, spec) ** 2).sum()


class MeanOfHalves(Losses):
    """Load and probability are multiplied in each half of the batch, and then averaged."""

    def value(self, logits, experts, spec, mask=None):
        whole = super().value(logits, experts, spec, mask)
        half = len(logits) // 2
        if half and mask is None:
            parts = slice(None, half), slice(half, None)
            found = [super(MeanOfHalves, self).value(logits[p], experts[p], spec) for p in parts]
            whole["balance"] = (found[0]["balance"] + found[1]["balance"]) / 2
        return whole


class FirstChoiceOnly(Losses):
    """Only each token's first choice is counted for the balance loss."""

    def balance(self, p, load, real, spec):
        return super().balance(p, self.first, real, spec) * spec.k

    def load(self, experts, real, spec):
        self.first = super().load(experts[:, :1], real, spec)
        return super().load(experts, real, spec)


class AlwaysSoftmax(Losses):
    """Probabilities are the softmax of the logits, whatever the score."""

    def probabilities(self, z, spec):
        return self.softmax(z)


class NotNormalized(Losses):
    """Scores are taken as they are, so that small sigmoids hide imbalance."""

    def probabilities(self, z, spec):
        if spec.score in ("sigmoid", "sqrt_softplus"):
            return self.scores(z, spec)
        return super().probabilities(z, spec)


class EpsInShares(Losses):
    """Scores are divided by their sum plus 1e-20, below which sigmoids hide imbalance."""

    def denominator(self, s):
        return super().denominator(s) + s.dtype.type(1e-20)


class SoftmaxOverTokens(Losses):
    """Softmax runs over the tokens."""

    def softmax(self, z):
        return super().softmax(z.T).T


class SmoothedSoftmax(Losses):
    """Softmax adds 1e-6 to its normaliser, which small logits feel."""

    def softmax(self, z):
        e = np.exp(z)
        return e / (e.sum(axis=1, keepdims=True) + e.dtype.type(1e-6))


class ZOfProbabilities(Losses):
    """The z loss is of the probabilities: softmax twice."""

    def z_loss(self, z, real):
        return super().z_loss(self.softmax(z), real)


class ZNotSquared(Losses):
    """The z loss is the mean of the logarithm, not of its square."""

    def penalty(self, logarithm):
        return logarithm


class ZOfSum(Losses):
    """The z loss is the square of the mean logarithm."""

    def z_loss(self, z, real):
        return (self.over_tokens(self.log_sum_exp(z), real)[0] / self.tokens(real)) ** 2


class ZSummed(Losses):
    """The z loss is a sum over tokens."""

    def z_loss(self, z, real):
        return super().z_loss(z, real) * self.tokens(real)


class ZOverExperts(Losses):
    """The z loss is divided by the number of experts too."""

    def z_loss(self, z, real):
        return super().z_loss(z, real) / z.shape[1]


class ZOverflows(Losses):
    """The z loss exponentiates the logits as they are, which overflows."""

    def log_sum_exp(self, z):
        return np.log(np.exp(z).sum(axis=1, keepdims=True))


class NarrowLogits(Losses):
    """Logits are rounded to bfloat16."""

    def read(self, z, real):
        return narrow(super().read(z, real))


class NarrowProbabilities(Losses):
    """Probabilities are rounded to bfloat16 though declared as float32."""

    def probabilities(self, z, spec):
        return narrow(super().probabilities(z, spec))


class NarrowLosses(Losses):
    """The losses are rounded to bfloat16 though declared as float32."""

    def value(self, logits, experts, spec, mask=None):
        found = super().value(logits, experts, spec, mask)
        return found | {n: narrow(np.asarray(found[n])) for n in ("balance", "z")}


class LastTokenLost(Losses):
    """The last token enters no mean."""

    def over_tokens(self, x, real):
        return super().over_tokens(x[:-1], real[:-1])


class FirstExpertLost(Losses):
    """Expert 0 is left out of the balance loss."""

    def balance(self, p, load, real, spec):
        return super().balance(p, load * (np.arange(len(load)) > 0), real, spec)


class LooseOrder(Losses):
    """The order of the sum over tokens changes from call to call."""

    calls = 0

    def over_tokens(self, x, real):
        self.calls += 1
        if not real.any():
            return super().over_tokens(x, real)
        return np.add.accumulate(np.roll(x[real], 7 * self.calls, axis=0), axis=0)[-1]


class ManyTokens(Losses):
    """Probabilities of tokens past the 64th are left out of their mean."""

    def over_tokens(self, x, real):
        return super().over_tokens(x[:64], real[:64])


MUTANTS: tuple[Mutant, ...] = (
    of_losses(PaddingHasLoad, "LOS-03", "LOS-06", seen="huggingface/transformers#28505"),
    of_losses(PaddingHasProbability, "LOS-03", seen="huggingface/transformers#28517"),
    of_losses(PaddingHasZ, "LOS-03", "LOS-22", seen="NVIDIA/Megatron-LM#2121"),
    of_losses(AllTokens, "LOS-03", "LOS-22", seen="NVIDIA/Megatron-LM#1984"),
    of_losses(PaddingTimesZero, "LOS-03", "LOS-04"),
    of_losses(PaddingAtTheEnd, "LOS-03", "LOS-22"),
    of_losses(MeanOfNothing, "LOS-04", "LOS-11"),
    of_losses(NotDividedByK, "LOS-01", "LOS-02", seen="huggingface/transformers#43775"),
    of_losses(FilledSlots, "LOS-05"),
    of_losses(NotTimesExperts, "LOS-01", "LOS-02"),
    of_losses(SquareOfLoad, "LOS-01"),
    of_losses(MeanOfHalves, "LOS-01"),
    of_losses(FirstChoiceOnly, "LOS-01"),
    of_losses(AlwaysSoftmax, "LOS-01"),
    of_losses(NotNormalized, "LOS-01", "LOS-08", seen="NVIDIA/Megatron-LM#1545"),
    of_losses(EpsInShares, "LOS-08", seen="NVIDIA/Megatron-LM#1545"),
    of_losses(SoftmaxOverTokens, "LOS-01"),
    of_losses(SmoothedSoftmax, "LOS-21"),
    of_losses(ZOfProbabilities, "LOS-01", seen="huggingface/transformers#45315"),
    of_losses(ZNotSquared, "LOS-01"),
    of_losses(ZOfSum, "LOS-01", "LOS-20"),
    of_losses(ZSummed, "LOS-01", "LOS-20"),
    of_losses(ZOverExperts, "LOS-01", "LOS-10"),
    of_losses(ZOverflows, "LOS-09"),
    of_losses(NarrowLogits, "LOS-01", seen="vllm-project/vllm#14027"),
    of_losses(NarrowProbabilities, "LOS-01", seen="databricks/megablocks#91"),
    of_losses(NarrowLosses, "LOS-01"),
    of_losses(LastTokenLost, "LOS-01", "LOS-18"),
    of_losses(FirstExpertLost, "LOS-01", "LOS-19"),
    of_losses(LooseOrder, "LOS-23"),
    of_losses(ManyTokens, "LOS-01"),
)
