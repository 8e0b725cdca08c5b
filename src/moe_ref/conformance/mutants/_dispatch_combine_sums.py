"""Wrong `dispatch_combine`s: weights, sums, containment and counts."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._dispatch_combine_rows import of_exchange
from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._plan_kernel import wide


class OwnWeights(Exchange):
    """A rank multiplies the rows it got with the weights of its own tokens."""

    def weights_there(self, sent, sizes):
        got = sizes.sum(axis=0)
        return [
            np.resize(s.weights, (n, s.weights.shape[1])) if s.weights.size else s.weights[:0]
            for s, n in zip(sent, got, strict=True)
        ]


class Uniform(Exchange):
    """Every slot weighs 1/k."""

    def masked(self, weights, mine):
        return mine / np.float32(mine.shape[1])


class AloneUnweighted(Exchange):
    """With one rank there is no exchange, and the weights are forgotten."""

    def arrived(self, x, experts, weights, num_experts):
        weights = np.ones_like(weights) if len(x) == 1 else weights
        return super().arrived(x, experts, weights, num_experts)


class RenormalizesThere(Exchange):
    """Each rank divides the weights it got by their sum."""

    def masked(self, weights, mine):
        own = super().masked(weights, mine)
        total = own.sum(axis=1, keepdims=True)
        return own / np.where(total != 0, total, 1)


class Epsilon(Exchange):
    """The weights are divided by 1 + 1e-7, an epsilon that was meant for a sum."""

    def masked(self, weights, mine):
        return super().masked(weights, mine) / np.float32(1 + 1.2e-7)


class Negligible(Exchange):
    """Slots with weights below 1e-5 are skipped."""

    def masked(self, weights, mine):
        own = super().masked(weights, mine)
        return np.where(np.abs(own) < 1e-5, 0, own)


class NarrowReturn(Exchange):
    """Partial sums come back in bfloat16 and are added in it, undeclared."""

    def combine(self, sent, back, shape):
        y = np.zeros(shape, np.float32)
        for row, token in enumerate(sent.token):
            y[token] = wide((y[token] + back[row]).astype(ml_dtypes.bfloat16))
        return y


class NarrowSums(Exchange):
    """The partial sum on a rank is kept in bfloat16."""

    def expert_sum(self, rank, x, experts, weights, scale):
        total = np.zeros_like(x)
        for copy in range(experts.shape[1]):
            one = slice(copy, copy + 1)
            part = super().expert_sum(rank, x, experts[:, one], weights[:, one], scale)
            total = wide((total + part).astype(ml_dtypes.bfloat16))
        return total


class ByteRows(Exchange):
    """Rows travel in eight bits with one factor a row, undeclared."""

    def rows(self, sent, x):
        step = np.abs(wide(x)).max(axis=2, initial=0, keepdims=True) / 127
        step = np.where(step > 0, step, 1)
        return super().rows(sent, np.rint(wide(x) / step) * step)


class HalfRows(Exchange):
    """Rows of bfloat16 travel as float16, which has not its range."""

    def rows(self, sent, x):
        return super().rows(sent, x.astype(np.float16) if x.dtype == ml_dtypes.bfloat16 else x)


class HalfCotangents(Exchange):
    """Cotangents of bfloat16 travel as float16."""

    def vjp(self, x, experts, weights, scale, cotangent):
        narrow = np.float16 if cotangent.dtype == ml_dtypes.bfloat16 else cotangent.dtype
        return super().vjp(x, experts, weights, scale, cotangent.astype(narrow))


class HalfWeights(Exchange):
    """Weights of bfloat16 travel as float16."""

    def arrived(self, x, experts, weights, num_experts):
        narrow = weights.dtype == ml_dtypes.bfloat16
        return super().arrived(
            x, experts, weights.astype(np.float16) if narrow else weights, num_experts
        )


class OneHot(Exchange):
    """Results are put together by a product with zeros and ones: a NaN reaches every token."""

    def combine(self, sent, back, shape):
        return super().combine(sent, back, shape) + 0 * back.sum(axis=0, keepdims=True)


class MaskAfter(Exchange):
    """Slots that are not meant are multiplied with 0, which a NaN survives."""

    def masked(self, weights, mine):
        return weights * mine

    def expert_sum(self, rank, x, experts, weights, scale):
        return np.einsum("nj,nj,nd->nd", weights, scale[experts], x)

    def expert_vjp(self, rank, x, experts, weights, dy, scale):
        dx = np.einsum("nj,nj,nd->nd", weights, scale[experts], dy)
        along = np.einsum("nd,nd->n", dy, x)[:, None]
        one_hot = experts[..., None] == np.arange(len(scale))
        ds = np.einsum("nj,nj,nje->e", weights, along * np.ones_like(weights), one_hot)
        return dx, (experts >= 0) * scale[experts] * along, ds


class LooseOrder(Exchange):
    """The order in which partial sums arrive changes from call to call."""

    calls = 0

    def combine(self, sent, back, shape):
        self.calls += 1
        order = np.roll(np.arange(len(back)), 7 * self.calls)
        y = np.zeros(shape, back.dtype)
        np.add.at(y, sent.token[order], back[order])
        return y


class BatchOrder(Exchange):
    """The order of the sum depends on the number of rows, though it says it does not."""

    def combine(self, sent, back, shape):
        order = np.arange(len(back))[:: -1 if shape[0] % 12 else 1]
        y = np.zeros(shape, back.dtype)
        np.add.at(y, sent.token[order], back[order])
        return y


class CountsEmpty(Exchange):
    """Empty slots are counted as the last rank's."""

    def traffic(self, sent):
        counted = super().traffic(sent)
        for s in sent:
            empty = self.tokens * s.experts.shape[1] - int((s.experts >= 0).sum())
            counted["rows_sent"][s.rank, -1] += empty > 0
            counted["copies_sent"][s.rank, -1] += empty
        return counted

    def arrived(self, x, experts, weights, num_experts):
        self.tokens = x.shape[1]
        return super().arrived(x, experts, weights, num_experts)


class RowsAreCopies(Exchange):
    """A token is counted once for each of its slots where it is sent once for each rank."""

    def traffic(self, sent):
        counted = super().traffic(sent)
        return counted | {"rows_sent": counted["copies_sent"]}


class CopiesAreRows(Exchange):
    """A token is counted once for each rank where it is sent once for each slot."""

    def traffic(self, sent):
        counted = super().traffic(sent)
        return counted | {"copies_sent": counted["rows_sent"]}


class Transposed(Exchange):
    """What a rank got is reported as what it sent."""

    def traffic(self, sent):
        return {name: count.T for name, count in super().traffic(sent).items()}


class PaddedBlocks(Exchange):
    """Rows that pad each block to a multiple of four are counted."""

    def traffic(self, sent):
        return {name: -(-count // 4) * 4 for name, count in super().traffic(sent).items()}


MUTANTS: tuple[Mutant, ...] = (
    of_exchange(OwnWeights, "EXC-01", "EXC-31", "EXC-32", "EXC-33"),
    of_exchange(Uniform, "EXC-01", "EXC-35", "EXC-36"),
    of_exchange(AloneUnweighted, "EXC-10", "EXC-33"),
    of_exchange(RenormalizesThere, "EXC-01", "EXC-35", "EXC-36"),
    of_exchange(Epsilon, "EXC-03"),
    of_exchange(Negligible, "EXC-36"),
    of_exchange(NarrowReturn, "EXC-01", "EXC-12", seen="deepseek-ai/DeepEP#176"),
    of_exchange(NarrowSums, "EXC-01", "EXC-12", seen="vllm-project/vllm#15045"),
    of_exchange(ByteRows, "EXC-01", "EXC-02", "EXC-34"),
    of_exchange(HalfRows, "EXC-15", "EXC-73"),
    of_exchange(HalfCotangents, "EXC-73"),
    of_exchange(HalfWeights, "EXC-15", "EXC-73"),
    of_exchange(OneHot, "EXC-08"),
    of_exchange(MaskAfter, "EXC-05", "EXC-09", "EXC-57", seen="huggingface/transformers#45621"),
    of_exchange(LooseOrder, "EXC-13"),
    of_exchange(BatchOrder, "EXC-14", batch_invariant=True, seen="sgl-project/sglang#27869"),
    of_exchange(CountsEmpty, "EXC-27", "EXC-28", seen="jax-ml/jax#38232"),
    of_exchange(RowsAreCopies, "EXC-27"),
    of_exchange(CopiesAreRows, "EXC-28"),
    of_exchange(Transposed, "EXC-27", "EXC-28"),
    of_exchange(PaddedBlocks, "EXC-27", "EXC-28"),
)
