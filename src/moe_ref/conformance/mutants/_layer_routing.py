"""Wrong layers: choice, weights and what happens between tokens."""

import types
from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._layer_correct import ByToken
from moe_ref.conformance.mutants._layer_kernel import Layer, mutants_in
from moe_ref.conformance.mutants._route_kernel import Router, wide


class _BiasedScores(Router):
    def chosen(self, z, s, ids, bias, spec):
        return np.take_along_axis(s if bias is None else s + wide(bias), ids, axis=1)


class BiasReachesWeights(Layer):
    """The selection bias is part of the weights."""

    killers = ("LAY-01", "LAY-23")
    seen = "vllm-project/vllm#12002"
    router = _BiasedScores()


class _NotRenormalized(Router):
    def rule(self, spec):
        return "none"


class NotRenormalized(Layer):
    """Weights are not divided by their sum."""

    killers = ("LAY-01",)
    seen = "pytorch/torchtitan#1448"
    router = _NotRenormalized()


class _OneGroup(Router):
    def limited(self, c, spec):
        return c


class GroupsIgnored(Layer):
    """Experts of all groups may be chosen."""

    killers = ("LAY-01",)
    router = _OneGroup()


class ScaleTwice(Layer):
    """The factor of the weights multiplies the output too."""

    killers = ("LAY-01",)

    def combined(self, total, traces, layer):
        return total * np.asarray(layer.spec.router.scale, total.dtype)


class ScaleOnlyIfRenormalized(Layer):
    """Without renormalisation the factor is left out."""

    killers = ("LAY-01",)
    seen = "sgl-project/sglang-jax#1282"

    def combined(self, total, traces, layer):
        renormalized = layer.spec.router.renormalize != "none"
        return super().combined(total, traces, layer) if renormalized else total


class CapIgnored(Layer):
    """Logits are not capped."""

    killers = ("LAY-01", "LAY-13")

    def capped(self, z, spec):
        return z


class ScoresForLogits(Layer):
    """What is reported as logits are scores."""

    killers = ("LAY-13",)
    seen = "huggingface/transformers#45315"

    def report(self, forth):
        said = vars(super().report(forth).routing)
        scores = self.router.softmax(forth.logits)
        return types.SimpleNamespace(routing=types.SimpleNamespace(**said | {"logits": scores}))


class OthersMoveTheRouter(Layer):
    """The router's logits are centred over the batch."""

    killers = ("LAY-01", "LAY-19")

    def logits(self, router, x):
        z = super().logits(router, x)
        return z - z.mean(axis=0)


class BatchChangesTheOrder(ByToken):
    """The order of the router's sums depends on how many tokens there are."""

    killers = ("LAY-24",)
    seen = "sgl-project/sglang#27869"

    def value(self, layer, x, mask=None):
        self.last_first = len(x) > 1
        return super().value(layer, x, mask)

    def logits(self, router, x):
        if not self.last_first:
            return super().logits(router, x)
        flipped = types.SimpleNamespace(weight=router.weight[:, ::-1], bias=router.bias)
        return super().logits(flipped, x[:, ::-1])


class OverflowDropped(Layer):
    """An expert takes no more than twice its fair share of slots, and drops the rest silently."""

    killers = ("LAY-02", "LAY-19", "LAY-20")

    def kept(self, ids, spec):
        kept, room = super().kept(ids, spec), 2 * ids.size // spec.router.num_experts + 1
        for expert in range(spec.router.num_experts):
            kept.reshape(-1)[np.flatnonzero((ids == expert) & kept)[room:]] = False
        return kept


class PaddingNotZero(Layer):
    """Padding gets what the biases alone give."""

    killers = ("LAY-06",)

    def result(self, y, x, mask):
        return y.astype(x.dtype)


class PaddingInExperts(Layer):
    """The id -1 of a padding token indexes the last expert, which reads the token as it is."""

    killers = ("LAY-10",)
    seen = "vllm-project/vllm#46408"

    def clean(self, x, mask):
        return x

    def visits(self, ids, kept, spec):
        return super().visits(ids % spec.router.num_choices, kept | (ids < 0), spec)


class _OneHot(Layer):
    def latent(self, layer, x):
        return np.eye(len(x), dtype=x.dtype) @ super().latent(layer, x)


class DispatchedByProducts(_OneHot):
    """Tokens reach experts by a product with a one-hot matrix, where 0 times NaN is NaN."""

    killers = ("LAY-04",)


class EveryExpertRuns(Layer):
    """Every expert runs on every token, times a weight of 0 where it was not chosen."""

    killers = ("LAY-05",)
    seen = "jax-ml/jax#17070"

    def combined(self, total, traces, layer):
        for expert in range(layer.spec.router.num_experts):
            p = self.parameters(layer, expert)
            size = (len(total), 1)
            other = self.run(p, np.ones_like(total), np.zeros(size, total.dtype), layer.spec)
            total = total + other.term * 0
        return super().combined(total, traces, layer)


class CapacityIgnored(Layer):
    """Nothing is dropped."""

    killers = ("LAY-34", "LAY-35")
    declared: ClassVar = {"capacity": True}

    def kept(self, ids, spec):
        return ids >= 0


class DroppedTokensPass(Layer):
    """A slot that is dropped adds the token itself, times its weight."""

    killers = ("LAY-34",)
    seen = "huggingface/transformers#37017"
    declared: ClassVar = {"capacity": True}

    def forth(self, layer, x, mask):
        forth = super().forth(layer, x, mask)
        if layer.spec.capacity is not None:
            weight = np.where(forth.kept | (forth.ids < 0), 0, forth.weights)
            forth.y = forth.y + weight.sum(axis=1, keepdims=True) * x
        return forth


class SurvivorsRenormalized(Layer):
    """The weights of slots that are kept are divided by their sum."""

    killers = ("LAY-34",)
    declared: ClassVar = {"capacity": True}

    def forth(self, layer, x, mask):
        forth = super().forth(layer, x, mask)
        if layer.spec.capacity is not None:
            total = np.where(forth.kept, forth.weights, 0).sum(axis=1, keepdims=True)
            forth.y = forth.y / np.where(total == 0, 1, total)
        return forth


class LastComesFirst(Layer):
    """Slots are handed out from the last token on."""

    killers = ("LAY-34", "LAY-35")
    seen = "huggingface/transformers#48293"
    declared: ClassVar = {"capacity": True}

    def kept(self, ids, spec):
        return super().kept(ids[::-1], spec)[::-1]


MUTANTS = mutants_in(globals())
