"""Routers whose numbers are of the wrong kind or too coarse, or change between calls."""

import dataclasses

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._route_kernel import Router, narrow, of_route
from moe_ref.spec import Numerics


class NarrowChoice(Router):
    """Choice scores are rounded to bfloat16, which merges close ones."""

    def choice(self, z, s, bias, spec):
        return narrow(super().choice(z, s, bias, spec))


class FloatIds(Router):
    """Ids are floating-point numbers."""

    def finished(self, ids, w, mask, logits):
        ids, w = super().finished(ids, w, mask, logits)
        return ids.astype(np.float32), w


class UnsignedIds(Router):
    """Ids have no sign, so that the -1 of padding becomes a large one."""

    def finished(self, ids, w, mask, logits):
        ids, w = super().finished(ids, w, mask, logits)
        return ids.astype(np.uint16), w


class NarrowScores(Router):
    """Scores are rounded to bfloat16 though declared as float32."""

    def scores(self, z, spec):
        return narrow(super().scores(z, spec))


class NarrowLogits(Router):
    """Logits are rounded to bfloat16 before they are scored."""

    def read(self, z, mask):
        return narrow(super().read(z, mask))


class NarrowWeights(Router):
    """Weights are rounded to bfloat16 though declared as float32."""

    def weights(self, w, spec):
        return narrow(super().weights(w, spec))


class Truncates(Router):
    """Weights are cut off to bfloat16 instead of rounded."""

    def finished(self, ids, w, mask, logits):
        bits = w.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return super().finished(ids, bits.view(np.float32), mask, logits)


class Complex(Router):
    """Weights are complex numbers."""

    def finished(self, ids, w, mask, logits):
        ids, w = super().finished(ids, w, mask, logits)
        return ids, w.astype(np.complex64)


class LooseOrder(Router):
    """The order of every sum changes from call to call."""

    calls = 0

    def total(self, x):
        self.calls += 1
        return np.add.accumulate(np.roll(x, self.calls, axis=1), axis=1)[:, -1:]


class BatchOrder(Router):
    """The order of every sum depends on how many tokens there are."""

    def total(self, x):
        return np.add.accumulate(np.roll(x, len(x) // 2, axis=1), axis=1)[:, -1:]


_WIDE_WEIGHTS = dataclasses.replace(Numerics.of("bfloat16"), weights="float32")
MUTANTS: tuple[Mutant, ...] = (
    of_route(NarrowChoice, "RTE-14", seen="vllm-project/vllm#14027"),
    of_route(FloatIds, "RTE-01"),
    of_route(UnsignedIds, "RTE-06"),
    of_route(NarrowScores, "RTE-01", seen="databricks/megablocks#91"),
    of_route(NarrowLogits, "RTE-01"),
    of_route(NarrowWeights, "RTE-01", dtypes=("bfloat16",), numerics={"bfloat16": _WIDE_WEIGHTS}),
    of_route(Truncates, "RTE-01"),
    of_route(Complex, "RTE-01"),
    of_route(LooseOrder, "RTE-28"),
    of_route(BatchOrder, "RTE-27", batch_invariant=True, seen="sgl-project/sglang#27869"),
)
