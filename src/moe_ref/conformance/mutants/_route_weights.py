"""Routers that weigh wrong."""

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._route_kernel import Router, of_route, wide


class BiasInWeights(Router):
    """The selection bias leaks into the weights."""

    def chosen(self, z, s, ids, bias, spec):
        w = super().chosen(z, s, ids, bias, spec)
        return w if bias is None else w + wide(bias)[ids]


class NeverRenormalizes(Router):
    """The chosen scores are never renormalised."""

    def rule(self, spec):
        return "none"


class AlwaysRenormalizes(Router):
    """The chosen scores are renormalised by their sum where the rule says none."""

    def rule(self, spec):
        return "sum" if super().rule(spec) == "none" else super().rule(spec)

    def denominator(self, w, spec):
        return self.total(w) if spec.renormalize == "none" else super().denominator(w, spec)


class SingleRenormalized(Router):
    """A single choice is renormalised where the rule leaves it alone."""

    def rule(self, spec):
        return spec.renormalize


class SingleLeftAlone(Router):
    """A single choice is left alone where the rule renormalises it."""

    def rule(self, spec):
        return "none" if spec.k == 1 else spec.renormalize


class OverAll(Router):
    """The chosen scores are divided by the sum over all experts."""

    def chosen(self, z, s, ids, bias, spec):
        w = super().chosen(z, s, ids, bias, spec)
        return w if spec.score != "sigmoid" else w / self.total(s)


class SoftmaxOverAll(Router):
    """Softmax runs over all experts where the rule says over the chosen."""

    def chosen(self, z, s, ids, bias, spec):
        if spec.score == "softmax_selected":
            s = self.softmax(z)
        return np.take_along_axis(s, ids, axis=1)

    def weights(self, w, spec):
        return (
            self.scaled(w, spec) if spec.score == "softmax_selected" else super().weights(w, spec)
        )


class SoftmaxOverChosen(Router):
    """Softmax runs over the chosen experts where the rule says over all."""

    def weights(self, w, spec):
        if spec.score == "softmax" and spec.renormalize == "none":
            w = w / self.total(w)
        return super().weights(w, spec)


class NoRoot(Router):
    """The score is the softplus, not its square root."""

    def sqrt_softplus(self, z):
        return super().sqrt_softplus(z) ** 2


class NoMaximum(Router):
    """Softmax exponentiates the logits as they are, which overflows."""

    def softmax(self, z):
        e = np.exp(z)
        return e / self.total(e)


class SmoothedSoftmax(Router):
    """Softmax adds 1e-6 to its normaliser, which small logits feel."""

    def softmax(self, z):
        e = np.exp(z)
        return e / (self.total(e) + e.dtype.type(1e-6))


class PaddedExperts(Router):
    """Experts are padded to a multiple of 8 with logits of 0, which softmax counts."""

    def softmax(self, z):
        padded = np.pad(z, ((0, 0), (0, -z.shape[1] % 8 if z.shape[1] > 8 else 0)))
        return super().softmax(padded)[:, : z.shape[1]]


class NoScale(Router):
    """The factor is left out."""

    def scaled(self, w, spec):
        return w


class ScaleTwice(Router):
    """The factor is applied twice."""

    def scaled(self, w, spec):
        return super().scaled(super().scaled(w, spec), spec)


class ScaleIfRenormalized(Router):
    """The factor is applied only where the weights are renormalised."""

    def scaled(self, w, spec):
        return w if spec.renormalize == "none" else super().scaled(w, spec)


class ScaleFirst(Router):
    """The factor is applied before renormalising, which cancels it."""

    def weights(self, w, spec):
        if self.rule(spec) == "none":
            return super().weights(w, spec)
        return self.renormalized(self.scaled(w, spec), spec)


class ScaleAnywhere(Router):
    """The factor multiplies the weights though it belongs to the output."""

    def scaled(self, w, spec):
        return w * w.dtype.type(spec.scale)


class NoEps(Router):
    """The eps of the renormalisation is left out."""

    def eps(self, w, spec):
        return np.zeros((), w.dtype)


class LargeEps(Router):
    """The eps of the renormalisation is at least 1e-6."""

    def eps(self, w, spec):
        return np.asarray(max(spec.renormalize_eps, 1e-6), w.dtype)


class ClampAdds(Router):
    """The eps is added to the sum where the rule takes the larger of both."""

    def denominator(self, w, spec):
        if spec.renormalize == "clamp":
            return self.total(w) + self.eps(w, spec)
        return super().denominator(w, spec)


class TwoNorm(Router):
    """The p-norm is always the 2-norm."""

    def denominator(self, w, spec):
        if spec.renormalize == "p_norm":
            return np.sqrt(self.total(w * w))
        return super().denominator(w, spec)


class ZeroOverZero(Router):
    """Where all chosen scores are 0 the weights are 0 / 0."""

    def renormalized(self, w, spec):
        return w / self.denominator(w, spec)


class IdsSorted(Router):
    """Ids are sorted and the weights are not."""

    def finished(self, ids, w, mask, logits):
        return super().finished(np.sort(ids, axis=1), w, mask, logits)


class Uniform(Router):
    """All weights are equal."""

    def finished(self, ids, w, mask, logits):
        return super().finished(ids, np.full_like(w, w.mean() if w.size else 0), mask, logits)


class OneWeightEach(Router):
    """Every slot of a token gets the weight of its first."""

    def finished(self, ids, w, mask, logits):
        return super().finished(ids, np.broadcast_to(w[:, :1], w.shape), mask, logits)


class PaddingWeighs(Router):
    """Padding tokens have no experts, but weights."""

    def finished(self, ids, w, mask, logits):
        return super().finished(ids, w, mask, logits)[0], w.astype(logits.dtype)


MUTANTS: tuple[Mutant, ...] = (
    of_route(BiasInWeights, "RTE-01", "RTE-04", seen="vllm-project/vllm#12002"),
    of_route(NeverRenormalizes, "RTE-01", "RTE-07", seen="pytorch/torchtitan#1448"),
    of_route(AlwaysRenormalizes, "RTE-01", "RTE-07"),
    of_route(SingleRenormalized, "RTE-01"),
    of_route(SingleLeftAlone, "RTE-17"),
    of_route(OverAll, "RTE-01"),
    of_route(SoftmaxOverAll, "RTE-01"),
    of_route(SoftmaxOverChosen, "RTE-01"),
    of_route(NoRoot, "RTE-01"),
    of_route(NoMaximum, "RTE-11"),
    of_route(SmoothedSoftmax, "RTE-25"),
    of_route(PaddedExperts, "RTE-26"),
    of_route(NoScale, "RTE-01", "RTE-07"),
    of_route(ScaleTwice, "RTE-01", "RTE-07"),
    of_route(ScaleIfRenormalized, "RTE-07", seen="sgl-project/sglang-jax#1282"),
    of_route(ScaleFirst, "RTE-07"),
    of_route(ScaleAnywhere, "RTE-16"),
    of_route(NoEps, "RTE-01"),
    of_route(LargeEps, "RTE-15"),
    of_route(ClampAdds, "RTE-01"),
    of_route(TwoNorm, "RTE-01"),
    of_route(ZeroOverZero, "RTE-08", seen="sgl-project/sglang#31017"),
    of_route(IdsSorted, "RTE-01"),
    of_route(Uniform, "RTE-01", "RTE-09"),
    of_route(OneWeightEach, "RTE-01"),
    of_route(PaddingWeighs, "RTE-06"),
)
