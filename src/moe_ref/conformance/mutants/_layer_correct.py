"""Layers that are right, each in its own legal way."""

import dataclasses
import types
from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._layer_expert import Expert
from moe_ref.conformance.mutants._layer_kernel import Layer, implementation_of
from moe_ref.conformance.mutants._mutant import kernels_in
from moe_ref.conformance.mutants._route_kernel import narrow
from moe_ref.spec import Numerics

_BFLOAT16 = Numerics.of("bfloat16")


class ByExpert(Layer):
    """Each expert on all its rows."""

    declared: ClassVar = {"capacity": True}


class ByToken(Layer):
    """One token after the other, from the last: its bits depend on nothing else."""

    declared: ClassVar = {"batch_invariant": True}

    def value(self, layer, x, mask=None):
        return by_token(super().value, layer, x, mask)


class LastExpertFirst(Layer):
    """Experts from last to first, their sums from the last product."""

    def visits(self, ids, kept, spec):
        return reversed(list(super().visits(ids, kept, spec)))

    def logits(self, router, x):
        flipped = types.SimpleNamespace(weight=router.weight[:, ::-1], bias=router.bias)
        return super().logits(flipped, x[:, ::-1])


class _Unrounded(Expert):
    def narrow(self, hidden, dtype):
        return hidden


class WideHidden(Layer):
    """The hidden layer stays in float32, and that is declared."""

    declared: ClassVar = {
        "numerics": {"bfloat16": dataclasses.replace(_BFLOAT16, hidden="float32")}
    }
    expert = _Unrounded()


class _Narrow(Expert):
    def before(self, before, dtype):
        return self.narrow(before, dtype)

    def output(self, output, dtype):
        return self.narrow(output, dtype)

    def weighted(self, output, w, p):
        return self.narrow(self.narrow(w, p.w_in.dtype) * output, p.w_in.dtype)


class NarrowEverywhere(Layer):
    """Every stage is rounded to bfloat16, the sum over slots after every step: all declared."""

    declared: ClassVar = {
        "dtypes": ("bfloat16",),
        "numerics": {
            "bfloat16": dataclasses.replace(
                _BFLOAT16,
                pre_activation="bfloat16",
                activation="bfloat16",
                expert_output="bfloat16",
                combine="bfloat16",
            )
        },
    }
    expert = _Narrow()

    def add(self, total, rows, term):
        total[rows] = narrow(total[rows] + term)


class Silent(Layer):
    """Says nothing about its routing."""

    def value(self, layer, x, mask=None):
        return super().value(layer, x, mask)[0]


class OnlyForth(Layer):
    """Has no gradient and takes no mask."""

    declared: ClassVar = {"gradients": False, "masks": False}


class SomeGradients(Layer):
    """Has the gradient of the tokens and of the experts' first matrices only."""

    declared: ClassVar = {"gradients": ("x", "layer.experts.w_in")}

    def vjp(self, layer, x, cotangent, mask=None):
        found = super().vjp(layer, x, cotangent, mask)
        return {name: found[name] for name in ("x", "layer.experts.w_in")}


class Tiled(Layer):
    """Takes whole tiles only."""

    declared: ClassVar = {
        "multiple_of": {"d_model": 32, "d_hidden": 64, "tokens": 8},
        "may_decline": True,  # one token alone is no whole tile
    }

    def value(self, layer, x, mask=None):
        if x.shape[0] % 8 or x.shape[1] % 32 or layer.spec.experts.d_hidden % 64:
            raise ValueError("whole tiles only")
        return super().value(layer, x, mask)


class Double(Layer):
    """Takes float64 and float16."""

    declared: ClassVar = {"dtypes": ("float64", "float16")}


def by_token(value, layer, x, mask):
    """Call `value` for one token at a time, from the last, and put the results together."""
    if not len(x):
        return value(layer, x, mask)
    one = [slice(i, i + 1) for i in reversed(range(len(x)))]
    found = [value(layer, x[i], None if mask is None else mask[i]) for i in one][::-1]
    said = [vars(aux.routing) for _, aux in found]
    routing = {name: np.concatenate([each[name] for each in said]) for name in said[0]}
    y = np.concatenate([y for y, _ in found])
    return y, types.SimpleNamespace(routing=types.SimpleNamespace(**routing))


CORRECT = tuple(implementation_of(kernel) for kernel in kernels_in(globals(), Layer))
