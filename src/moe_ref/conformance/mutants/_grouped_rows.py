"""Wrong grouped matmuls: rows meet the wrong expert, or none."""

import itertools
from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._grouped_kernel import Kernel, filled, mutants_in, renumbered


class Zeros(Kernel):
    """Nothing is computed: all results are 0, which a loose tolerance takes for small numbers."""

    killers = ("GRP-02", "GRP-03", "GRP-04", "GRP-12", "GRP-13")
    seen = "Dao-AILab/sonic-moe#63"

    def rows(self, x, w, expert):
        return 0 * super().rows(x, w, expert)


class SwappedExperts(Kernel):
    """The first two experts are swapped."""

    killers = ("GRP-02", "GRP-20")

    def forward(self, x, w, groups):
        order = np.arange(len(w))
        order[:2] = order[:2][::-1]
        return super().forward(x, w[order], groups)


class NextExpert(Kernel):
    """Each group is multiplied with the weight of the expert after its own."""

    killers = ("GRP-02", "GRP-03", "GRP-06")

    def forward(self, x, w, groups):
        return super().forward(x, np.roll(w, -1, axis=0), groups)


class FirstExpert(Kernel):
    """All rows are multiplied with the weight of the first expert."""

    killers = ("GRP-02", "GRP-07")

    def forward(self, x, w, groups):
        return super().forward(x, np.broadcast_to(w[:1], w.shape), groups)


class BySize(Kernel):
    """Groups are worked off from the largest to the smallest, their weights in the order given."""

    killers = ("GRP-02", "GRP-20")

    def forward(self, x, w, groups):
        largest = sorted(groups, key=lambda group: group[1] - group[2])
        return super().forward(x, w, renumbered(largest))


class OneRowLate(Kernel):
    """Every group starts one row late, so its first row has the expert before."""

    killers = ("GRP-02", "GRP-04")

    def ends(self, group_sizes, x):
        return [min(end + 1, len(x)) for end in super().ends(group_sizes, x)]


class NeighbourAtTheBoundary(Kernel):
    """The tile across a boundary has one expert: a group's last row is the next expert's."""

    killers = ("GRP-02", "GRP-24")

    def forward(self, x, w, groups):
        y = super().forward(x, w, groups)
        for (_, start, stop), (after, *_) in itertools.pairwise(groups):
            if stop > start:
                y[stop - 1 : stop] = super().forward(x[stop - 1 : stop], w[after:], [(0, 0, 1)])
        return y


class LastRowLost(Kernel):
    """The last row of the batch is never written."""

    killers = ("GRP-02", "GRP-24", "GRP-27")

    def forward(self, x, w, groups):
        y = super().forward(x, w, groups)
        last = max(stop for _, _, stop in groups)
        y[max(last - 1, 0) : last] = 0
        return y


class SkipsEmptyGroups(Kernel):
    """Weights are counted off for groups that have rows, so an empty one shifts those behind it."""

    killers = ("GRP-03", "GRP-04", "GRP-22")

    def forward(self, x, w, groups):
        return super().forward(x, w, renumbered(filled(groups)))


class FewExperts(Kernel):
    """Expert numbers are kept in 8 bits, which wrap around."""

    killers = ("GRP-07",)

    def forward(self, x, w, groups):
        return super().forward(x, w, [(e % 256, a, b) for e, a, b in groups])


class BoundedGroups(Kernel):
    """A group holds at most four times the mean number of rows; what is above is lost."""

    killers = ("GRP-03",)

    def forward(self, x, w, groups):
        most = 4 * -(-len(x) // len(w))
        return super().forward(x, w, [(e, a, min(b, a + most)) for e, a, b in groups])


class LastExpertUnused(Kernel):
    """The loop over experts ends one early."""

    killers = ("GRP-02", "GRP-03")

    def forward(self, x, w, groups):
        return super().forward(x, w, groups[:-1] or groups)


class RepeatedRowsOnce(Kernel):
    """Rows that are equal are computed once, and only the first gets the result."""

    killers = ("GRP-23",)

    def rows(self, x, w, expert):
        y = super().rows(x, w, expert)
        kept = np.unique(x, axis=0, return_index=True)[1]
        return np.where(np.isin(np.arange(len(x)), kept)[:, None], y, 0)


class BatchedInPairs(Kernel):
    """A batch of an even number of rows takes a path that knows one expert."""

    killers = ("GRP-21",)

    def forward(self, x, w, groups):
        if len(x) % 2 == 0:
            w = np.broadcast_to(w[-1:], w.shape)
        return super().forward(x, w, groups)


class OneRowEach(Kernel):
    """Where no group has a second row, as for one token, rows meet the first experts in order."""

    killers = ("GRP-27", "GRP-57", "GRP-58")

    def groups(self, group_sizes, x):
        groups = super().groups(group_sizes, x)
        alone = len(filled(groups)) > 1 and group_sizes.max() == 1
        return renumbered(filled(groups)) if alone else groups


class OneRowEachForW(Kernel):
    """Where no group has a second row, the gradient of w is that of the first experts."""

    killers = ("GRP-58",)

    def for_w(self, x, w, groups, dy):
        rows = [stop - start for _, start, stop in filled(groups)]
        alone = len(rows) > 1 and max(rows) == 1
        return super().for_w(x, w, renumbered(filled(groups)) if alone else groups, dy)


class BatchDependent(Kernel):
    """The sum is split differently for small batches, though rows are declared independent."""

    killers = ("GRP-25", "GRP-63")
    seen = "sgl-project/sglang#27869"
    declared: ClassVar = {"batch_invariant": True}

    def forward(self, x, w, groups):
        step = -1 if len(x) < 48 else 1
        return super().forward(x[:, ::step], w[:, ::step], groups)

    def for_x(self, x, w, groups, dy):
        step = -1 if len(x) < 48 else 1
        return super().for_x(x, w[:, :, ::step], groups, dy[:, ::step])


MUTANTS = mutants_in(globals())
