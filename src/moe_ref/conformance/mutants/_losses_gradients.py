"""Losses whose gradient is wrong."""

import numpy as np

from moe_ref.conformance.mutants._losses_kernel import Losses, of_losses
from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._route_kernel import narrow, wide


class Detached(Losses):
    """The balance loss passes no gradient."""

    def balance_pull(self, z, p, g, spec):
        return np.zeros_like(z)


class DetachedZ(Losses):
    """The z loss passes no gradient."""

    def z_pull(self, z, real):
        return np.zeros_like(z)


class ThroughCounts(Losses):
    """The counts pass the gradient of the probabilities they stand for, doubling it."""

    def slope(self, load, real, spec):
        return 2 * super().slope(load, real, spec)


class NoCrossTerm(Losses):
    """The gradient of the shares lacks its cross term."""

    def balance_pull(self, z, p, g, spec):
        return super().balance_pull(z, p, g, spec) + p * (g * p).sum(axis=1, keepdims=True)


class SoftmaxGradient(Losses):
    """The gradient is that of a softmax, whatever the score."""

    def balance_pull(self, z, p, g, spec):
        return p * (g - (g * p).sum(axis=1, keepdims=True))


class SumIsConstant(Losses):
    """The sum of the scores is taken for a constant."""

    def balance_pull(self, z, p, g, spec):
        without = super().balance_pull(z, p, g, spec)
        rest = g - (g * p).sum(axis=1, keepdims=True)
        constant = spec.score in ("sigmoid", "sqrt_softplus")
        return without * g / np.where(rest == 0, 1, rest) if constant else without


class OnlyOnce(Losses):
    """The gradient of the square lacks its factor of 2."""

    def z_pull(self, z, real):
        return super().z_pull(z, real) / 2


class ZWithoutLogarithm(Losses):
    """The gradient of the z loss is that of the logarithm."""

    def z_pull(self, z, real):
        return super().z_pull(z, real) / (2 * self.log_sum_exp(z))


class SwappedCotangents(Losses):
    """The two cotangents are swapped."""

    def vjp(self, logits, experts, spec, cotangent, mask=None):
        return super().vjp(logits, experts, spec, cotangent[::-1], mask)


class GradientOverAll(Losses):
    """The gradient is divided by all tokens, padding included."""

    def without_padding(self, dz, real, logits):
        share = float(real.mean() if real.size else 1)
        return super().without_padding(dz, real, logits) * share


class PaddingLearns(Losses):
    """Padding tokens get a gradient."""

    def without_padding(self, dz, real, logits):
        return dz


class PaddingGradientTimesZero(Losses):
    """The gradient of padding is multiplied by 0, which leaves its NaNs."""

    def without_padding(self, dz, real, logits):
        return dz * real[:, None] + 0 * wide(logits)


class GradientOfNothing(Losses):
    """The gradient of nothing but padding is 0 / 0."""

    def tokens(self, real):
        return float(real.sum())

    def without_padding(self, dz, real, logits):
        return super().without_padding(dz, real, logits) if real.any() else dz


class DeviationGradient(Losses):
    """The gradient goes through a standard deviation of the load, which is 0 at balance."""

    def slope(self, load, real, spec):
        deviation = load.std()
        return super().slope(load, real, spec) * (deviation / deviation)


class OverflowingGradient(Losses):
    """The gradient of the z loss exponentiates the logits as they are, which overflows."""

    def z_pull(self, z, real):
        e = np.exp(z)
        total = e.sum(axis=1, keepdims=True)
        return 2 * np.log(total) * (e / total) / self.tokens(real)


class SquaredDenominator(Losses):
    """The gradient divides by the square of the sum of the scores, which underflows."""

    def balance_pull(self, z, p, g, spec):
        if spec.score != "sigmoid":
            return super().balance_pull(z, p, g, spec)
        s = self.sigmoid(z)
        total = s.sum(axis=1, keepdims=True)
        squared = total * total
        squared = np.where(squared < np.finfo(s.dtype).tiny, 0, squared)
        return s * self.sigmoid(-z) * (g / total - (g * s).sum(axis=1, keepdims=True) / squared)


class LogitTimesGradient(Losses):
    """The gradient has a term of the logit times 0, which is NaN where the logit is -inf."""

    def z_pull(self, z, real):
        return super().z_pull(z, real) + 0 * z


class NarrowGradient(Losses):
    """The gradient of the probabilities is rounded to bfloat16."""

    def slope(self, load, real, spec):
        return narrow(super().slope(load, real, spec))


MUTANTS: tuple[Mutant, ...] = (
    of_losses(Detached, "LOS-12", seen="huggingface/transformers#28093"),
    of_losses(DetachedZ, "LOS-12"),
    of_losses(ThroughCounts, "LOS-12"),
    of_losses(NoCrossTerm, "LOS-12", "LOS-15"),
    of_losses(SoftmaxGradient, "LOS-12"),
    of_losses(SumIsConstant, "LOS-12"),
    of_losses(OnlyOnce, "LOS-12"),
    of_losses(ZWithoutLogarithm, "LOS-12"),
    of_losses(SwappedCotangents, "LOS-12"),
    of_losses(GradientOverAll, "LOS-13"),
    of_losses(PaddingLearns, "LOS-13", seen="huggingface/transformers#29363"),
    of_losses(PaddingGradientTimesZero, "LOS-13", seen="jax-ml/jax#17117"),
    of_losses(GradientOfNothing, "LOS-14"),
    of_losses(DeviationGradient, "LOS-15", seen="google-research/vmoe#218"),
    of_losses(OverflowingGradient, "LOS-16"),
    of_losses(SquaredDenominator, "LOS-16"),
    of_losses(LogitTimesGradient, "LOS-17", seen="jax-ml/jax#347"),
    of_losses(NarrowGradient, "LOS-12"),
)
