"""Routers that choose wrong."""

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._route_kernel import Router, of_route, wide


class RejectedGetZero(Router):
    """Choice scores of rejected groups become 0, which beats negative ones."""

    def rejected(self, c):
        return 0.0


class RejectedGetTenThousand(Router):
    """Choice scores of rejected groups become -10000, which beats a bias below it."""

    def rejected(self, c):
        return -1e4


class BiasIsClipped(Router):
    """The selection bias is held between -10 and 10."""

    def choice(self, z, s, bias, spec):
        return super().choice(z, s, None if bias is None else np.clip(bias, -10, 10), spec)


class GroupMax(Router):
    """A group is scored by its best expert, whatever the rule says."""

    def group_scores(self, groups, spec):
        return groups.max(axis=2)


class GroupSum(Router):
    """A group is scored by the sum of its two best, whatever the rule says."""

    def group_scores(self, groups, spec):
        return np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)


class WholeGroups(Router):
    """A group is scored by the sum of all its experts."""

    def group_scores(self, groups, spec):
        return groups.sum(axis=2)


class OneGroupMore(Router):
    """One group more than the rule says stays eligible."""

    def limited(self, c, spec):
        groups = self.grouped(c, spec)
        kept = self.best(self.group_scores(groups, spec), spec.groups_kept + 1)
        allowed = np.zeros(groups.shape[:2], bool)
        np.put_along_axis(allowed, kept, True, axis=1)
        return np.where(self.members(allowed, spec), c, -np.inf).astype(c.dtype)


class Interleaved(Router):
    """Expert e belongs to group e modulo the number of groups."""

    def grouped(self, c, spec):
        return c.reshape(len(c), -1, spec.num_groups).swapaxes(1, 2)

    def members(self, allowed, spec):
        return np.tile(allowed, spec.num_choices // spec.num_groups)


class BiasForgotten(Router):
    """The selection bias steers nothing."""

    def choice(self, z, s, bias, spec):
        return super().choice(z, s, None, spec)


class BiasSubtracted(Router):
    """The selection bias has the wrong sign."""

    def choice(self, z, s, bias, spec):
        return super().choice(z, s, None if bias is None else -bias, spec)


class BiasOnLogits(Router):
    """The selection bias is added to the logits instead of the scores."""

    def choice(self, z, s, bias, spec):
        return s if bias is None else self.scores(z + wide(bias), spec)


class HighestWins(Router):
    """Ties go to the higher index, of experts and of groups."""

    def best(self, c, k):
        return c.shape[1] - 1 - super().best(c[:, ::-1], k)


class HighestGroupWins(Router):
    """Ties of groups go to the higher index, those of experts to the lower."""

    def limited(self, c, spec):
        groups = self.grouped(c, spec)
        scores = self.group_scores(groups, spec)
        kept = scores.shape[1] - 1 - self.best(scores[:, ::-1], spec.groups_kept)
        allowed = np.zeros(scores.shape, bool)
        np.put_along_axis(allowed, kept, True, axis=1)
        return np.where(self.members(allowed, spec), c, -np.inf).astype(c.dtype)


class NegativeZeroIsLess(Router):
    """Numbers are compared by their bits, in which -0 is below 0."""

    def best(self, c, k):
        least = np.finfo(np.float32).tiny
        return super().best(np.where((c == 0) & np.signbit(c), -least, c), k)


class RemovesEquals(Router):
    """Taking the best score away takes all that equal it, so a worse expert is chosen."""

    def choose(self, c, spec):
        c, ids = np.where(np.isnan(c), np.inf, c), []
        for _ in range(spec.k):
            ids.append(c.argmax(axis=1))
            c = np.where(c == c.max(axis=1, keepdims=True), -np.inf, c)
        return np.stack(ids, axis=1)


class IndexBreaksTies(Router):
    """Every choice score loses a little times its index, so that ties are broken."""

    def choice(self, z, s, bias, spec):
        c = super().choice(z, s, bias, spec)
        return c - c.dtype.type(1e-3) * np.arange(c.shape[1], dtype=c.dtype)


class FirstTwice(Router):
    """The best expert is chosen a second time in place of the next."""

    def choose(self, c, spec):
        ids = super().choose(c, spec)
        ids[:, 1:2] = ids[:, :1]
        return ids


class RepeatsOnNan(Router):
    """The arg-max loop finds no best among NaN and gives expert 0 k times."""

    def choose(self, c, spec):
        return np.where(np.isnan(c).any(axis=1, keepdims=True), 0, super().choose(c, spec))


class PastTheEndOnNan(Router):
    """The arg-max loop finds no best among NaN and gives ids past the last expert."""

    def finished(self, ids, w, mask, logits):
        past = logits.shape[1] + np.arange(ids.shape[1])
        lost = np.isnan(wide(logits)).any(axis=1, keepdims=True)
        return super().finished(np.where(lost, past, ids), w, mask, logits)


class NanSpreads(Router):
    """A NaN anywhere reaches the weights of all tokens."""

    def weights(self, w, spec):
        return super().weights(w, spec) + 0 * w.sum()


class AlwaysByScore(Router):
    """Experts are compared by score where the rule says by logit."""

    def choice(self, z, s, bias, spec):
        return s if bias is None else s + wide(bias)


class AlwaysByLogit(Router):
    """Experts are compared by logit where the rule says by score, so a bias weighs too little."""

    def choice(self, z, s, bias, spec):
        return z if bias is None else z + wide(bias)


class ClipsLogits(Router):
    """Logits are cut off at 15, so that larger ones tie."""

    def read(self, z, mask):
        return np.clip(super().read(z, mask), -15, 15)


class IgnoresMask(Router):
    """Padding tokens are routed like others."""

    def finished(self, ids, w, mask, logits):
        return super().finished(ids, w, None, logits)


class MaskMultiplies(Router):
    """Padding is multiplied by 0, which leaves its NaNs."""

    def read(self, z, mask):
        return z

    def finished(self, ids, w, mask, logits):
        masked = w if mask is None else w * mask[:, None]
        return (
            super().finished(ids, masked, None, logits)
            if mask is None
            else (
                np.where(mask[:, None], ids, -1).astype(np.int32),
                masked.astype(logits.dtype),
            )
        )


class PaddingInFront(Router):
    """The mask is read as a count: the first tokens are taken for the real ones."""

    def finished(self, ids, w, mask, logits):
        first = None if mask is None else np.arange(len(mask)) < mask.sum()
        return super().finished(ids, w, first, logits)


class LimitsExperts(Router):
    """An expert that 12 tokens have chosen is taken from the later ones, which lose the slot."""

    def finished(self, ids, w, mask, logits):
        one_hot = ids[:, :, None] == np.arange(logits.shape[1])
        earlier = np.take_along_axis(one_hot.any(axis=1).cumsum(axis=0), ids, axis=1)
        full = earlier > 12
        return super().finished(np.where(full, -1, ids), np.where(full, 0, w), mask, logits)


class CommonMaximum(Router):
    """Softmax subtracts the maximum of the whole batch, so that tokens far below it underflow."""

    def softmax(self, z):
        e = np.exp(z - z.max(initial=-np.inf))
        return e / self.total(e)


class WholeTiles(Router):
    """Tokens after the last whole tile of 32 are not routed, unless there are fewer than 32."""

    def finished(self, ids, w, mask, logits):
        whole = np.arange(len(w)) < max(len(w) // 32 * 32, 32)
        return super().finished(ids, np.where(whole[:, None], w, 0), mask, logits)


class FourGroups(Router):
    """The limit of groups is left out where there are more than four."""

    def limited(self, c, spec):
        return c if spec.num_groups > 4 else super().limited(c, spec)


class ManyTokens(Router):
    """Logits of tokens past the 64th are halved."""

    def read(self, z, mask):
        z = super().read(z, mask).copy()
        z[64:] /= 2
        return z


MUTANTS: tuple[Mutant, ...] = (
    of_route(RejectedGetZero, "RTE-03", seen="vllm-project/vllm#13474"),
    of_route(RejectedGetTenThousand, "RTE-03"),
    of_route(BiasIsClipped, "RTE-04"),
    of_route(GroupMax, "RTE-01", seen="deepseek-ai/DeepSeek-V3#741"),
    of_route(GroupSum, "RTE-01"),
    of_route(WholeGroups, "RTE-01"),
    of_route(OneGroupMore, "RTE-01"),
    of_route(Interleaved, "RTE-01", "RTE-22"),
    of_route(BiasForgotten, "RTE-01"),
    of_route(BiasSubtracted, "RTE-01"),
    of_route(BiasOnLogits, "RTE-01"),
    of_route(HighestWins, "RTE-02", seen="vllm-project/vllm#54403"),
    of_route(HighestGroupWins, "RTE-02", seen="vllm-project/vllm#55514"),
    of_route(NegativeZeroIsLess, "RTE-36"),
    of_route(RemovesEquals, "RTE-02", "RTE-13"),
    of_route(IndexBreaksTies, "RTE-14", "RTE-22"),
    of_route(FirstTwice, "RTE-01", "RTE-05"),
    of_route(RepeatsOnNan, "RTE-05", seen="vllm-project/vllm#39391"),
    of_route(PastTheEndOnNan, "RTE-05", seen="sgl-project/sglang#30079"),
    of_route(NanSpreads, "RTE-05"),
    of_route(AlwaysByScore, "RTE-11", "RTE-16"),
    of_route(AlwaysByLogit, "RTE-01"),
    of_route(ClipsLogits, "RTE-11"),
    of_route(IgnoresMask, "RTE-06"),
    of_route(MaskMultiplies, "RTE-06"),
    of_route(PaddingInFront, "RTE-06"),
    of_route(LimitsExperts, "RTE-21", "RTE-23", "RTE-24"),
    of_route(CommonMaximum, "RTE-11"),
    of_route(WholeTiles, "RTE-01", "RTE-21"),
    of_route(FourGroups, "RTE-01"),
    of_route(ManyTokens, "RTE-01"),
)
