"""Routers that are right in other legal ways, and all that are wrong."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _odd,
    _route_choice,
    _route_gradients,
    _route_precision,
    _route_sizes,
    _route_special,
    _route_weights,
    _sequence,
)
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._route_kernel import Router, narrow
from moe_ref.spec import Numerics


class BackwardSums(Router):
    """Every sum runs from the last expert to the first, one by one."""

    def total(self, x):
        return np.add.accumulate(x[:, ::-1], axis=1)[:, -1:]


class Double(Router):
    """Softmax in float64, without subtracting the maximum, rounded to float32."""

    def softmax(self, z):
        e = np.exp(z.astype(np.float64))
        return (e / e.sum(axis=1, keepdims=True)).astype(z.dtype)


class AnyWins(Router):
    """Ties go to the higher index, and it says so."""

    def best(self, c, k):
        return c.shape[1] - 1 - super().best(c[:, ::-1], k)


class ByIndex(Router):
    """The slots of a token are in the order of their experts, and weights are not rounded."""

    def choose(self, c, spec):
        return np.sort(super().choose(c, spec), axis=1)

    def finished(self, ids, w, mask, logits):
        return super().finished(ids, w, mask, w)


class DeclaredNarrow(Router):
    """Weights are bfloat16 whatever the logits are, and it says so."""

    def weights(self, w, spec):
        return narrow(super().weights(w, spec))


class DeclaredScores(Router):
    """Scores are bfloat16, and so is what they are divided to, and it says so."""

    def softmax(self, z):
        return narrow(super().softmax(z))

    def sigmoid(self, z):
        return narrow(super().sigmoid(z))

    def sqrt_softplus(self, z):
        return narrow(super().sqrt_softplus(z))

    def renormalized(self, w, spec):
        return narrow(super().renormalized(w, spec))


def _correct(kernel: type[Router], **declared: Any) -> Implementation:
    fields: dict[str, Any] = {"batch_invariant": True} | declared
    return numpy_implementation(f"route, {kernel.__name__}", "route", kernel(), **fields)


_NARROW = dataclasses.replace(Numerics.of("float32"), weights="bfloat16")
_SCORES = {
    dtype: dataclasses.replace(Numerics.of(dtype), score="bfloat16")
    for dtype in ("float32", "bfloat16")
}
CORRECT: tuple[Implementation, ...] = (
    _correct(Router),
    _correct(BackwardSums),
    _correct(Double),
    _correct(AnyWins, ties="any"),
    _correct(ByIndex),
    _correct(DeclaredNarrow, numerics={"float32": _NARROW}),
    _correct(DeclaredScores, numerics=_SCORES),
    _calls.CORRECT["route"],
    _alongside.CORRECT["route"],
)
MUTANTS: tuple[Mutant, ...] = (
    *_route_choice.MUTANTS,
    *_route_weights.MUTANTS,
    *_route_precision.MUTANTS,
    *_route_gradients.MUTANTS,
    *_route_sizes.MUTANTS,
    *_route_special.MUTANTS,
    _alongside.MUTANTS["route"],
    *_calls.MUTANTS["route"],
    *_odd.MUTANTS["route"],
    *_sequence.MUTANTS["route"],
)
