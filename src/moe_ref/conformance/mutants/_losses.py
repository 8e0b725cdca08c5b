"""Losses that are right in other legal ways, and all that are wrong."""

import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _ids,
    _losses_counts,
    _losses_gradients,
    _losses_sizes,
    _losses_values,
    _odd,
    _sequence,
)
from moe_ref.conformance.mutants._losses_kernel import Losses
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation


class OneByOne(Losses):
    """Sums over tokens run one by one, from the last to the first."""

    def over_tokens(self, x, real):
        backwards = x[real][::-1]
        return np.add.accumulate(backwards, axis=0)[-1] if len(backwards) else x[:0].sum(axis=0)


class Double(Losses):
    """Everything in float64, rounded at the end; the logarithm without the maximum if it may."""

    def read(self, z, real):
        return super().read(z.astype(np.float64), real)

    def log_sum_exp(self, z):
        plain = np.log(np.exp(z).sum(axis=1, keepdims=True))
        return np.where(np.isfinite(plain), plain, super().log_sum_exp(z))


class Pairs(Losses):
    """Only the two losses; probabilities from logarithms, each chosen slot added on its own."""

    def value(self, logits, experts, spec, mask=None):
        found = super().value(logits, experts, spec, mask)
        return found["balance"], found["z"]

    def balance(self, p, load, real, spec):
        totals = self.over_tokens(p, real)
        mine = np.repeat(totals, load).sum(dtype=totals.dtype)
        return mine * spec.num_choices / (self.tokens(real) ** 2 * spec.k)

    def z_pull(self, z, real):
        logarithm = self.log_sum_exp(z)
        return 2 * logarithm * np.exp(z - logarithm) / self.tokens(real)


CORRECT: tuple[Implementation, ...] = (
    *(
        numpy_implementation(f"losses, {kernel.__name__}", "losses", kernel())
        for kernel in (Losses, OneByOne, Double, Pairs)
    ),
    _calls.CORRECT["losses"],
    _alongside.CORRECT["losses"],
)
MUTANTS: tuple[Mutant, ...] = (
    *_losses_values.MUTANTS,
    *_losses_counts.MUTANTS,
    *_losses_gradients.MUTANTS,
    *_losses_sizes.MUTANTS,
    _alongside.MUTANTS["losses"],
    *_calls.MUTANTS["losses"],
    *_odd.MUTANTS["losses"],
    *_sequence.MUTANTS["losses"],
    *_ids.MUTANTS["losses"],
)
