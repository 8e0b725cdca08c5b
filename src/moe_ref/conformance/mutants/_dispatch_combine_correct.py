"""Right `dispatch_combine`s that do it another way."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange, Sent
from moe_ref.conformance.mutants._mutant import numpy_implementation
from moe_ref.conformance.mutants._plan_kernel import wide
from moe_ref.spec import Numerics


class Copies(Exchange):
    """Every slot is a row of its own, and comes back as one."""

    def pack(self, rank, experts, weights, home, ranks):
        token, slot = np.nonzero(home >= 0)
        order = np.argsort(home[token, slot], kind="stable")
        token, slot = token[order], slot[order]
        goal = home[token, slot]
        return Sent(
            rank=rank,
            token=token,
            goal=goal,
            slot=slot[:, None],
            experts=experts[token, slot][:, None],
            weights=wide(weights)[token, slot][:, None],
            sizes=np.bincount(goal, minlength=ranks),
        )

    def traffic(self, sent):
        return {"copies_sent": self.sizes(sent)}


class WeightsStay(Copies):
    """The weights stay where the token is and multiply what comes back."""

    def weights_there(self, sent, sizes):
        return self.dispatch([np.ones_like(s.weights) for s in sent], sizes)

    def combine(self, sent, back, shape):
        return super().combine(sent, sent.weights * back, shape)

    def vjp(self, x, experts, weights, scale, cotangent):
        # Backwards they travel: an expert's gradient needs them.
        return Copies().vjp(x, experts, weights, scale, cotangent)


class AllGather(Exchange):
    """Every rank sees all tokens and gives back a sum for each; nothing is counted."""

    def pack(self, rank, experts, weights, home, ranks):
        tokens = len(experts)
        token, goal = np.tile(np.arange(tokens), ranks), np.repeat(np.arange(ranks), tokens)
        mine = home[token] == goal[:, None]
        return Sent(
            rank=rank,
            token=token,
            goal=goal,
            slot=np.broadcast_to(np.arange(experts.shape[1]), mine.shape),
            experts=np.where(mine, experts[token], -1),
            weights=np.where(mine, wide(weights)[token], 0),
            sizes=np.full(ranks, tokens),
        )

    def traffic(self, sent):
        return {}


class Backwards(Exchange):
    """Partial sums are added in the reverse order of ranks, and slots in reverse order."""

    def combine(self, sent, back, shape):
        y = np.zeros(shape, back.dtype)
        np.add.at(y, sent.token[::-1], back[::-1])
        return y

    def expert_sum(self, rank, x, experts, weights, scale):
        return super().expert_sum(rank, x, experts[:, ::-1], weights[:, ::-1], scale)


class Rounds(Exchange):
    """Buckets of three rows for each pair, in as many rounds as it takes."""

    def dispatch(self, operands, sizes):
        ranks, most = len(sizes), int(sizes.max(initial=0))
        starts = self.at_sender(sizes)
        found: list[list[list[np.ndarray]]] = [[[] for _ in range(ranks)] for _ in range(ranks)]
        for begin in range(0, most, 3):
            for (i, j), n in np.ndenumerate(sizes):
                first, last = starts[i, j] + begin, starts[i, j] + min(begin + 3, n)
                found[j][i].append(operands[i][first:last])
        return [
            np.concatenate([operands[j][:0], *(part for parts in found[j] for part in parts)])
            for j in range(ranks)
        ]


class DeclaresNarrow(Exchange):
    """Partial sums come back in x's dtype and are added in it, which is declared."""

    def expert_sum(self, rank, x, experts, weights, scale):
        total = super().expert_sum(rank, x, experts, weights, scale)
        return wide(total.astype(ml_dtypes.bfloat16))

    def combine(self, sent, back, shape):
        y = np.zeros(shape, np.float32)
        for goal in np.unique(sent.goal):
            rows = sent.goal == goal
            y[sent.token[rows]] += back[rows]
            y = wide(y.astype(ml_dtypes.bfloat16))
        return y


class OtherDtypes(Exchange):
    """float64 and float16."""


_NARROW = dataclasses.replace(Numerics.of("bfloat16"), combine="bfloat16")


def _correct(kernel: type[Exchange], **declared: Any) -> Implementation:
    name = f"dispatch_combine, {kernel.__name__}"
    fields: dict[str, Any] = {"batch_invariant": True} | declared
    return numpy_implementation(name, "dispatch_combine", kernel(), **fields)


CORRECT: tuple[Implementation, ...] = (
    _correct(Exchange),
    _correct(Copies),
    _correct(WeightsStay),
    _correct(AllGather),
    _correct(Backwards),
    _correct(Rounds),
    _correct(OtherDtypes, dtypes=("float64", "float16")),
    _correct(DeclaresNarrow, dtypes=("bfloat16",), numerics={"bfloat16": _NARROW}),
)
