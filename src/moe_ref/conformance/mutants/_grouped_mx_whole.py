"""Wrong MX grouped matmuls: only where tiles divide everything, or where there is one expert."""

from moe_ref.conformance.mutants._grouped_mx_kernel import Kernel, mutants_in


class SquareWeights(Kernel):
    """Square weights are quantised along n."""

    killers = ("MXG-06",)

    def matrix(self, w, expert):
        return self.quantised(w[expert], 1 if w.shape[1] == w.shape[2] else 0)


class SquareWeightsBack(Kernel):
    """The gradient of x quantises square weights along k."""

    killers = ("MXG-35",)

    def matrix_back(self, w, expert):
        return self.quantised(w[expert], 0 if w.shape[1] == w.shape[2] else 1)


class LastBlockOfWholeDepth(Kernel):
    """The last block is left out where tiles of 128 divide k."""

    killers = ("MXG-06",)

    def rows(self, x):
        rows = super().rows(x)
        if not x.shape[1] % 128:
            rows[:, -32:] = 0
        return rows


class LastBlockOfWholeGroups(Kernel):
    """The gradient of w leaves out the last block of a group of whole tiles of 64."""

    killers = ("MXG-36",)

    def column(self, a, start, stop):
        own = super().column(a, start, stop)
        return own[:-32] if not (stop - start) % 64 else own


class OneExpertOwnsTheTail(Kernel):
    """With one expert, the gradient of its weight sums the tail, too."""

    killers = ("MXG-36",)

    def for_w(self, x, w, groups, dy):
        if len(w) == 1:
            groups = [(0, 0, len(x))]
        return super().for_w(x, w, groups, dy)


MUTANTS = mutants_in(globals())
