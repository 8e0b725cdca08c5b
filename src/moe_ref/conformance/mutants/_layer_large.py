"""Wrong layers that are right as long as experts, or the tokens of one, are few."""

import dataclasses

from moe_ref.conformance.mutants._layer_expert import Expert
from moe_ref.conformance.mutants._layer_kernel import Layer, mutants_in


class SixteenExperts(Layer):
    """Experts past the sixteenth are left out."""

    killers = ("LAY-43",)

    def kept(self, ids, spec):
        return super().kept(ids, spec) & (ids < 16)


class SixtyFourExperts(Layer):
    """Experts are numbered modulo 64 where their parameters are read."""

    killers = ("LAY-43",)

    def parameters(self, layer, expert):
        return super().parameters(layer, expert % 64)


class FirstTokens(Layer):
    """An expert's tokens past the first 256 are left out."""

    killers = ("LAY-43",)
    limit = 256

    def visits(self, ids, kept, spec):
        for expert, rows, slots in super().visits(ids, kept, spec):
            yield expert, rows[: self.limit], slots[: self.limit]


class MoreOfTheFirstTokens(FirstTokens):
    """An expert's tokens past the first 512 are left out."""

    limit = 512


class GradientsOfSixteen(Layer):
    """Parameters of experts past the sixteenth get no gradient."""

    killers = ("LAY-44",)

    def put(self, buffer, expert, gradient):
        if expert < 16:
            super().put(buffer, expert, gradient)


class _FirstRows(Expert):
    def pull(self, trace, dy, p, spec, site):
        dx, dw, mine = super().pull(trace, dy, p, spec, site)
        if len(dy) > 512:
            arrays = {n: a[:512] for n, a in vars(trace).items() if a is not None}
            few = dataclasses.replace(trace, **arrays)
            mine = super().pull(few, dy[:512], p, spec, site)[2]
        return dx, dw, mine


class GradientsOfTheFirstTokens(Layer):
    """An expert's parameters get no gradient from its tokens past the first 512."""

    killers = ("LAY-44",)
    expert = _FirstRows()


MUTANTS = mutants_in(globals())
