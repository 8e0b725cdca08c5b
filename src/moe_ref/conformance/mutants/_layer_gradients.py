"""Wrong layers whose values are right: gradients are lost, doubled or stale."""

import dataclasses
from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._layer_expert import Expert
from moe_ref.conformance.mutants._layer_kernel import Layer, mutants_in
from moe_ref.conformance.mutants._route_kernel import Router, wide


class RouterFrozen(Layer):
    """The router gets no gradient."""

    killers = ("LAY-07", "LAY-08")
    seen = "davidmrau/mixture-of-experts#27"

    def pull_router(self, layer, forth, dw, found):
        return super().pull_router(layer, forth, 0 * dw, found)


class RouterFrozenForOneChoice(Layer):
    """With one choice a token the router gets no gradient, as if its weight were 1."""

    killers = ("LAY-07",)
    seen = "jingyaogong/minimind#858"

    def pull_router(self, layer, forth, dw, found):
        return super().pull_router(layer, forth, dw * (dw.shape[1] > 1), found)


class _MovesTheBias(Router):
    def bias_gradient(self, bias, dz):
        return dz.sum(axis=0).astype(bias.dtype)


class BiasGetsAGradient(Layer):
    """The selection bias gets the gradient of a bias of the logits."""

    killers = ("LAY-07",)
    seen = "huggingface/transformers#39581"
    router = _MovesTheBias()


class _SumIsConstant(Router):
    def renormalize_pull(self, s, dw, spec):
        return dw / self.denominator(s, spec)


class SumIsConstant(Layer):
    """The sum that weights are divided by is taken for a constant."""

    killers = ("LAY-07",)
    router = _SumIsConstant()


class _OnlyTheChosen(Router):
    def score_pull(self, z, s, ds, spec):
        if spec.score != "softmax":
            return super().score_pull(z, s, ds, spec)
        return np.where(ds == 0, 0, super().score_pull(z, s, ds, spec)).astype(z.dtype)


class OnlyTheChosen(Layer):
    """The softmax passes no gradient to experts that were not chosen."""

    killers = ("LAY-07",)
    seen = "NVIDIA/Megatron-LM#4168"
    router = _OnlyTheChosen()


class NoRouterInX(Layer):
    """The gradient of the tokens misses the router's part."""

    killers = ("LAY-07",)

    def sum_for_x(self, parts):
        return super().sum_for_x(parts | {"router": 0 * parts["router"]})


class NoSharedInX(Layer):
    """The gradient of the tokens misses the shared expert's part."""

    killers = ("LAY-07",)

    def sum_for_x(self, parts):
        shared = {name: 0 * part for name, part in parts.items() if name == "shared"}
        return super().sum_for_x(parts | shared)


class NoGateInX(Layer):
    """The gradient of the tokens misses the part of the shared expert's gate."""

    killers = ("LAY-07",)

    def sum_for_x(self, parts):
        return super().sum_for_x({n: part for n, part in parts.items() if n != "gate"})


class ExpertsTwice(Layer):
    """The experts' weights get twice their gradient."""

    killers = ("LAY-07", "LAY-08", "LAY-09")
    seen = "pytorch/pytorch#160285"

    def put(self, buffer, expert, gradient):
        buffer[expert] = 2 * gradient


class _BiasUnweighted(Expert):
    def bias_pull(self, d_out, dy, w, site):
        return dy.sum(axis=0)


class BiasGradientUnweighted(Layer):
    """The gradient of the second bias misses the weights."""

    killers = ("LAY-07",)
    expert = _BiasUnweighted()


class _WeightsUnmoved(Expert):
    def weight_pull(self, t, dy, d_hidden, d_read, p, site):
        bias = 0 if p.b_out is None else wide(p.b_out)
        return (dy * (t.output - bias)).sum(axis=1)


class BiasMovesNoWeight(Layer):
    """The gradient of the weights misses the second bias."""

    killers = ("LAY-07",)
    expert = _WeightsUnmoved()


class _PassesTheClamp(Expert):
    def pull_nonlinear(self, t, d, spec):
        if t.up is None:
            return super().pull_nonlinear(t, d, spec)
        free = dataclasses.replace(spec, swiglu_limit=None)
        limit = self.limit(spec)
        inside = dataclasses.replace(
            t, gate=np.minimum(t.gate, limit), up=np.clip(t.up, -limit, limit)
        )
        return super().pull_nonlinear(inside, d, free)


class ClampPassesGradients(Layer):
    """Clamped values pass their gradient on."""

    killers = ("LAY-07",)
    expert = _PassesTheClamp()


class IdleExpertsStale(Layer):
    """The gradient of an expert that no token visits is what was in memory."""

    killers = ("LAY-09",)
    seen = "openxla/tokamax#887"

    def buffers(self, experts):
        return {name: array + 1 for name, array in super().buffers(experts).items()}


class BuffersKept(Layer):
    """The experts' gradients are added to those of the call before."""

    killers = ("LAY-27", "LAY-29")

    def __init__(self):
        self.last = {}

    def buffers(self, experts):
        fresh = super().buffers(experts)
        for name, array in fresh.items():
            if name in self.last and self.last[name].shape == array.shape:
                array += np.nan_to_num(self.last[name])
        self.last = fresh
        return fresh

    def put(self, buffer, expert, gradient):
        buffer[expert] += gradient


class DroppedSlotsMove(Layer):
    """A slot that is dropped still gets the gradient of its weight."""

    killers = ("LAY-35",)
    declared: ClassVar = {"capacity": True}

    def pull_experts(self, layer, forth, dy):
        d_latent, dw, found = super().pull_experts(layer, forth, dy)
        passed = (dy * forth.latent).sum(axis=1, keepdims=True)
        return d_latent, np.where(forth.kept | (forth.ids < 0), dw, passed), found


class HalfPrecisionGradients(Layer):
    """Cotangents pass through float16 without a scale, where small ones lose their digits."""

    killers = ("LAY-26",)

    def back(self, layer, forth, dy):
        return super().back(layer, forth, dy.astype(np.float16).astype(dy.dtype))


class MeanOverTokens(Layer):
    """The gradient is divided by the share of tokens that have a cotangent."""

    killers = ("LAY-26", "LAY-27")

    def back(self, layer, forth, dy):
        share = max((dy != 0).any(axis=1).mean(), 1e-9) if len(dy) else 1
        return super().back(layer, forth, dy / np.asarray(share, dy.dtype))


class WidensGradients(Layer):
    """Gradients are float32 whatever their inputs are."""

    killers = ("LAY-28",)

    def returned(self, found, layer, x):
        rounded = super().returned(found, layer, x)
        return {name: wide(gradient) for name, gradient in rounded.items()}


class LastTokenUnmoved(Layer):
    """The last token gets no gradient through its experts."""

    killers = ("LAY-07", "LAY-25")

    def sum_for_x(self, parts):
        cut = parts["experts"].copy()
        cut[-1:] = 0
        return super().sum_for_x(parts | {"experts": cut})


class NanSpreadsBack(Layer):
    """The gradient of the tokens is gathered by a product with a one-hot matrix."""

    killers = ("LAY-11",)
    seen = "huggingface/transformers#45621"

    def sum_for_x(self, parts):
        dx = super().sum_for_x(parts)
        return np.eye(len(dx), dtype=dx.dtype) @ dx


class PaddingMovesWeights(Layer):
    """Padding is left out by a product with the mask, where 0 times NaN is NaN."""

    killers = ("LAY-10",)
    seen = "jax-ml/jax#347"

    def clean(self, x, mask):
        return x if mask is None else x * mask[:, None].astype(x.dtype)


MUTANTS = mutants_in(globals())
