"""Wrong grouped matmuls: only where tiles divide everything, or where there is one expert."""

from moe_ref.conformance.mutants._grouped_kernel import Kernel, mutants_in


class SquareTiles(Kernel):
    """Square weights of whole tiles of 32 are multiplied as they are transposed."""

    killers = ("GRP-06",)

    def rows(self, x, w, expert):
        whole = w.shape[0] == w.shape[1] and not w.shape[0] % 32
        return super().rows(x, w.T if whole else w, expert)


class SquareTilesBack(Kernel):
    """The gradient of x takes square weights of whole tiles of 32 as they are."""

    killers = ("GRP-33",)

    def rows_back(self, dy, w, expert):
        whole = w.shape[0] == w.shape[1] and not w.shape[0] % 32
        return super().rows_back(dy, w.T if whole else w, expert)


class LastStepOfWholeDepth(Kernel):
    """The last 16 terms are left out where tiles of 64 divide k and n."""

    killers = ("GRP-06",)

    def rows(self, x, w, expert):
        steps = w.shape[0] - 16 if not w.shape[0] % 64 and not w.shape[1] % 64 else None
        return super().rows(x[:, :steps], w[:steps], expert)


class WholeGroupsOfDw(Kernel):
    """The gradient of a weight counts the last 64 rows of a group of more such parts twice."""

    killers = ("GRP-34",)

    def weight(self, x, dy, expert):
        own = super().weight(x, dy, expert)
        more = len(x) > 64 and not len(x) % 64
        return own + super().weight(x[-64:], dy[-64:], expert) if more else own


class OneExpertOwnsTheTail(Kernel):
    """With one expert, the gradient of its weight sums the tail, too."""

    killers = ("GRP-34",)

    def for_w(self, x, w, groups, dy):
        if len(w) == 1:
            groups = [(0, 0, len(x))]
        return super().for_w(x, w, groups, dy)


class OneExpertHasNoGradient(Kernel):
    """With one expert, the gradient of x is zero."""

    killers = ("GRP-33",)

    def rows_back(self, dy, w, expert):
        return super().rows_back(dy, w, expert) * (self._experts > 1)

    def for_x(self, x, w, groups, dy):
        self._experts = len(w)
        return super().for_x(x, w, groups, dy)


MUTANTS = mutants_in(globals())
