"""Wrong layers: numbers are narrower than declared, or rounded the wrong way."""

import dataclasses
from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._layer_expert import Expert
from moe_ref.conformance.mutants._layer_kernel import Layer, mutants_in
from moe_ref.conformance.mutants._route_kernel import narrow, wide
from moe_ref.spec import Numerics

_WIDE_HIDDEN = dataclasses.replace(Numerics.of("bfloat16"), hidden="float32")
_NARROW: dict = {"dtypes": ("bfloat16",)}


def truncated(x: np.ndarray) -> np.ndarray:
    """Cut to the bits of bfloat16, toward zero."""
    kept = x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return kept.view(np.float32).astype(x.dtype)


class _ShortWeights(Expert):
    def weighted(self, output, w, p):
        return w * np.asarray(0.999, w.dtype) * output


class WeightsTooSmall(Layer):
    """All weights are 0.1% too small where they multiply."""

    killers = ("LAY-01", "LAY-31")
    expert = _ShortWeights()


class _NarrowWeights(Expert):
    def weighted(self, output, w, p):
        return narrow(w) * output


class WeightsRounded(Layer):
    """Weights are rounded to bfloat16 where they multiply."""

    killers = ("LAY-01", "LAY-30")
    expert = _NarrowWeights()


class WeightsRoundedInBfloat16(Layer):
    """Weights of tokens in bfloat16 are rounded to it though declared as float32."""

    killers = ("LAY-30",)
    declared: ClassVar = _NARROW
    expert = _NarrowWeights()


class NarrowCombine(Layer):
    """The sum over slots is rounded to bfloat16 after every product and addition."""

    killers = ("LAY-01", "LAY-03", "LAY-30")
    seen = "vllm-project/vllm#15045"

    def add(self, total, rows, term):
        total[rows] = narrow(total[rows] + narrow(term))


class NarrowCombineInBfloat16(NarrowCombine):
    """The sum over slots of tokens in bfloat16 is rounded to it after every step."""

    killers = ("LAY-30", "LAY-33")
    declared: ClassVar = _NARROW


class HiddenRounded(Layer):
    """The hidden layer is rounded to bfloat16 though declared as float32."""

    killers = ("LAY-01", "LAY-30")
    declared: ClassVar = _NARROW | {"numerics": {"bfloat16": _WIDE_HIDDEN}}


class _Truncated(Expert):
    def narrow(self, hidden, dtype):
        return truncated(hidden)


class HiddenTruncated(Layer):
    """The hidden layer is cut to bfloat16, not rounded."""

    killers = ("LAY-31",)
    declared: ClassVar = _NARROW
    expert = _Truncated()


class _NarrowProjection(Expert):
    def before(self, before, dtype):
        return narrow(before)


class GateAndUpRounded(Layer):
    """Gate and up are rounded to bfloat16 before the activation."""

    killers = ("LAY-30",)
    declared: ClassVar = _NARROW
    expert = _NarrowProjection()


class _NarrowOutput(Expert):
    def output(self, output, dtype):
        return narrow(output)


class ExpertOutputRounded(Layer):
    """Each expert's output is rounded to bfloat16 before it is weighted."""

    killers = ("LAY-30", "LAY-33")
    declared: ClassVar = _NARROW
    expert = _NarrowOutput()


class OutputTruncated(Layer):
    """The output is cut to bfloat16, not rounded."""

    killers = ("LAY-32", "LAY-33")
    declared: ClassVar = _NARROW

    def result(self, y, x, mask):
        return super().result(truncated(y), x, mask)


class OneExpertSlightlyOff(Layer):
    """One expert's output is 0.1% too large, in bfloat16."""

    killers = ("LAY-31",)
    declared: ClassVar = _NARROW

    def parameters(self, layer, expert):
        p = super().parameters(layer, expert)
        factor = 1.001 if expert == 1 else 1
        p.w_out = wide(p.w_out) * np.asarray(factor, np.float32)
        return p


class NarrowRouter(Layer):
    """The router's product is rounded to bfloat16 though it is to be in float32."""

    killers = ("LAY-01", "LAY-13")
    seen = "vllm-project/vllm#14027"

    def logits(self, router, x):
        return narrow(narrow(x) @ narrow(wide(router.weight)).T)


class _HalfPrecision(Expert):
    def weighted(self, output, w, p):
        return (w * output).astype(np.float16).astype(output.dtype)


class HalfPrecisionInside(Layer):
    """What slots add passes through float16, where small numbers lose their digits."""

    killers = ("LAY-14",)
    declared: ClassVar = _NARROW
    expert = _HalfPrecision()


class WidensTheOutput(Layer):
    """The output is float32 whatever the tokens are."""

    killers = ("LAY-12",)

    def result(self, y, x, mask):
        return super().result(y, y, mask)


class AnyOrder(Layer):
    """The router's sums run in an order that changes from call to call."""

    killers = ("LAY-15", "LAY-29")

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def logits(self, router, x):
        order = self.rng.permutation(x.shape[1])
        z = x[:, order] @ wide(router.weight)[:, order].T
        return z if router.bias is None else z + wide(router.bias)


MUTANTS = mutants_in(globals())
