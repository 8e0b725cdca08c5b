"""Losses whose load or step is wrong."""

import numpy as np

from moe_ref.conformance.mutants._losses_kernel import Losses, of_losses
from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._route_kernel import narrow


class Wraps(Losses):
    """An empty slot, -1, counts for the last expert."""

    def load(self, experts, real, spec):
        return np.bincount(experts[real].reshape(-1) % spec.num_choices, minlength=spec.num_choices)


class Clips(Losses):
    """An empty slot, -1, counts for the first expert."""

    def load(self, experts, real, spec):
        return np.bincount(np.maximum(experts[real], 0).reshape(-1), minlength=spec.num_choices)


class CountsOnce(Losses):
    """An id that a token names twice counts once."""

    def load(self, experts, real, spec):
        one_hot = experts[real][:, :, None] == np.arange(spec.num_choices)
        return one_hot.any(axis=1).sum(axis=0)


class AfterDropping(Losses):
    """The load counts what a capacity of 1.25 times the fair share lets through."""

    def load(self, experts, real, spec):
        capacity = int(np.ceil(1.25 * real.sum() * spec.k / spec.num_choices))
        return np.minimum(super().load(experts, real, spec), capacity)


class ByteCounts(Losses):
    """The load is counted in bytes, which wrap."""

    def load(self, experts, real, spec):
        return super().load(experts, real, spec).astype(np.uint8).astype(np.int64)


class NarrowCounts(Losses):
    """The load is counted in bfloat16, which stays at 256."""

    def load(self, experts, real, spec):
        counts = np.zeros(spec.num_choices, np.float32)
        ids = experts[real]
        for expert in ids[ids >= 0]:
            counts[expert] = narrow(counts[expert] + 1)
        return counts.astype(np.int64)


class FloatCounts(Losses):
    """The load is reported in floating point."""

    def reported(self, load):
        return load.astype(np.float32)


class StepReversed(Losses):
    """The step goes towards the experts with too much."""

    def step(self, load):
        return -super().step(load)


class NoTies(Losses):
    """An expert at the mean is pushed up."""

    def step(self, load):
        return np.where(len(load) * load <= load.sum(), 1, -1)


class FloatMean(Losses):
    """The mean is that of fractions in float32, which misses ties."""

    def step(self, load):
        fractions = load.astype(np.float32) / np.float32(max(load.sum(), 1))
        mean = np.add.accumulate(fractions)[-1] / np.float32(len(load))
        return np.sign(mean - fractions)


class IntegerMean(Losses):
    """The mean is rounded down, so that an expert just below it stays."""

    def step(self, load):
        return np.sign(load.sum() // len(load) - load)


class MeanOfSigns(Losses):
    """Each half of the batch takes a step of its own, and the steps are averaged."""

    def load(self, experts, real, spec):
        half = len(experts) // 2
        parts = slice(None, half), slice(half, None)
        self.halves = [super(MeanOfSigns, self).load(experts[p], real[p], spec) for p in parts]
        return self.halves[0] + self.halves[1]

    def step(self, load):
        return sum(super(MeanOfSigns, self).step(half) for half in self.halves) / 2


class StepByHalves(MeanOfSigns):
    """Each half of the batch takes a step of its own, and their sign is taken."""

    def step(self, load):
        return np.sign(super().step(load))


class StepOfProportion(Losses):
    """The step is proportional to the violation."""

    def step(self, load):
        return (load.mean() - load) / max(load.mean(), 1)


class LoadShifted(Losses):
    """Expert 0 and the last one swap their counts."""

    def reported(self, load):
        return load[np.r_[len(load) - 1, 1 : len(load) - 1, 0]] if len(load) > 1 else load


MUTANTS: tuple[Mutant, ...] = (
    of_losses(Wraps, "LOS-05", "LOS-06", seen="vllm-project/vllm#46408"),
    of_losses(Clips, "LOS-05", "LOS-06"),
    of_losses(CountsOnce, "LOS-06"),
    of_losses(AfterDropping, "LOS-01", "LOS-06"),
    of_losses(ByteCounts, "LOS-06", seen="jax-ml/jax#18440"),
    of_losses(NarrowCounts, "LOS-06", "LOS-07"),
    of_losses(FloatCounts, "LOS-01"),
    of_losses(StepReversed, "LOS-07"),
    of_losses(NoTies, "LOS-07"),
    of_losses(FloatMean, "LOS-07"),
    of_losses(IntegerMean, "LOS-07"),
    of_losses(MeanOfSigns, "LOS-07", "LOS-20"),
    of_losses(StepByHalves, "LOS-07", "LOS-20"),
    of_losses(StepOfProportion, "LOS-07"),
    of_losses(LoadShifted, "LOS-06", "LOS-19"),
)
