"""Routers whose gradient is wrong."""

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._route_kernel import Router, narrow, of_route, wide


class Detached(Router):
    """The weights pass no gradient."""

    def scatter(self, ds, ids, z):
        return np.zeros_like(z)


class ConstantDenominator(Router):
    """The denominator of the renormalisation is taken for a constant."""

    def renormalize_pull(self, s, dw, spec):
        return (dw / self.denominator(s, spec)).astype(s.dtype)


class ClampAlwaysMoves(Router):
    """The gradient goes through the sum where the clamp's eps is larger."""

    def renormalize_pull(self, s, dw, spec):
        d = self.denominator(s, spec)
        return ((dw - self.total(dw * s / d)) / d).astype(s.dtype)


class DiagonalSoftmax(Router):
    """The gradient of softmax lacks its cross term."""

    def softmax_pull(self, p, dp):
        return p * (1 - p) * dp


class PositiveSoftmax(Router):
    """The cross term of softmax has the wrong sign."""

    def softmax_pull(self, p, dp):
        return p * (dp + self.total(dp * p))


class SlopeOfOne(Router):
    """The scores' own slope is left out of the gradient."""

    def score_pull(self, z, s, ds, spec):
        return ds


class UnscaledGradient(Router):
    """The gradient lacks the factor of the weights."""

    def vjp(self, logits, spec, cotangent, bias=None, mask=None):
        less = (cotangent.astype(np.float32) / spec.scale).astype(cotangent.dtype)
        return super().vjp(logits, spec, less, bias, mask)


class FirstSlotOnly(Router):
    """Only the first slot's gradient arrives."""

    def scatter(self, ds, ids, z):
        return super().scatter(ds[:, :1], ids[:, :1], z)


class SlotsReversed(Router):
    """The slots' gradients go to the experts in the wrong order."""

    def scatter(self, ds, ids, z):
        return super().scatter(ds, ids[:, ::-1], z)


class BiasInGradient(Router):
    """The gradient is taken at scores plus bias."""

    def chosen(self, z, s, ids, bias, spec):
        w = super().chosen(z, s, ids, bias, spec)
        return w if bias is None else w + wide(bias)[ids]

    def route(self, logits, spec, bias, mask):
        ids, _, s, z = super().route(logits, spec, bias, mask)
        return ids, self.weights(super().chosen(z, s, ids, bias, spec), spec), s, z


class BiasLearns(Router):
    """The selection bias gets the gradient of its expert's logit."""

    def bias_gradient(self, bias, dz):
        return dz.sum(axis=0).astype(bias.dtype)


class PaddingLearns(Router):
    """Padding tokens get a gradient."""

    def without_padding(self, dz, mask, logits):
        return dz


class PaddingTimesZero(Router):
    """The gradient of padding is multiplied by 0, which leaves its NaNs."""

    def without_padding(self, dz, mask, logits):
        return dz if mask is None else dz * mask[:, None] + 0 * wide(logits)


class UnsafeDenominator(Router):
    """The gradient divides by a denominator of 0, and `where` hides it in the value only."""

    def renormalize_pull(self, s, dw, spec):
        d = self.denominator(s, spec)
        inner = self.total(dw * s / d)
        if spec.renormalize == "p_norm":
            inner = inner * (s / d) ** (spec.renormalize_p - 1)
        elif spec.renormalize == "clamp":
            inner = np.where(self.total(s) > spec.renormalize_eps, inner, 0)
        return ((dw - inner) / d).astype(s.dtype)


class SquaredDenominator(Router):
    """The gradient divides by the square of the denominator, which underflows."""

    def renormalize_pull(self, s, dw, spec):
        d = self.denominator(s, spec)
        if spec.renormalize != "sum":
            return super().renormalize_pull(s, dw, spec)
        squared = d * d
        squared = np.where(squared < np.finfo(s.dtype).tiny, 0, squared)
        return np.where(d == 0, 0, dw / d - self.total(dw * s) / squared).astype(s.dtype)


class SingleLearns(Router):
    """A single renormalised choice passes the gradient straight to its score."""

    def renormalize_pull(self, s, dw, spec):
        return dw if spec.k == 1 else super().renormalize_pull(s, dw, spec)


class LogitTimesGradient(Router):
    """The gradient has a term of the logit times 0, which is NaN where the logit is -inf."""

    def score_pull(self, z, s, ds, spec):
        return super().score_pull(z, s, ds, spec) + 0 * z


class GradientSpreads(Router):
    """A NaN in one token's gradient reaches all tokens."""

    def score_pull(self, z, s, ds, spec):
        dz = super().score_pull(z, s, ds, spec)
        return dz + 0 * dz.sum()


class NarrowGradient(Router):
    """The gradient of the scores is rounded to bfloat16."""

    def scatter(self, ds, ids, z):
        return super().scatter(narrow(ds), ids, z)


class NaiveSlope(Router):
    """The slope of the square root is its inverse, which is Inf where the score is 0."""

    def score_pull(self, z, s, ds, spec):
        if spec.score != "sqrt_softplus":
            return super().score_pull(z, s, ds, spec)
        return ds * self.sigmoid(z) * (0.5 / s)


MUTANTS: tuple[Mutant, ...] = (
    of_route(Detached, "RTE-10"),
    of_route(ConstantDenominator, "RTE-10", "RTE-17"),
    of_route(ClampAlwaysMoves, "RTE-10"),
    of_route(DiagonalSoftmax, "RTE-10"),
    of_route(PositiveSoftmax, "RTE-10"),
    of_route(SlopeOfOne, "RTE-10", "RTE-19"),
    of_route(UnscaledGradient, "RTE-10"),
    of_route(FirstSlotOnly, "RTE-10"),
    of_route(SlotsReversed, "RTE-10"),
    of_route(BiasInGradient, "RTE-10"),
    of_route(BiasLearns, "RTE-10"),
    of_route(PaddingLearns, "RTE-12"),
    of_route(PaddingTimesZero, "RTE-12", seen="jax-ml/jax#17117"),
    of_route(UnsafeDenominator, "RTE-08"),
    of_route(SquaredDenominator, "RTE-19"),
    of_route(SingleLearns, "RTE-17"),
    of_route(LogitTimesGradient, "RTE-18", seen="jax-ml/jax#347"),
    of_route(GradientSpreads, "RTE-20"),
    of_route(NarrowGradient, "RTE-10"),
    of_route(NaiveSlope, "RTE-18"),
)
