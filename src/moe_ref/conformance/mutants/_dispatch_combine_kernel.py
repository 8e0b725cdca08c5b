"""`dispatch_combine` in NumPy, right, in steps on simulated ranks: a mutant replaces one."""

import dataclasses

import numpy as np

from moe_ref.conformance.mutants._plan_kernel import wide


@dataclasses.dataclass
class Sent:
    """What a rank sends: rows in the order of their destination.

    Attributes:
        rank: who sends.
        token: [n] which of the rank's tokens each row is.
        goal: [n] rank it goes to.
        slot: [n, copies] which of the token's slots travel with it.
        experts: [n, copies] their experts, -1 for none.
        weights: [n, copies] float32, 0 for none.
        sizes: [ranks] rows for each rank.
    """

    rank: int
    token: np.ndarray
    goal: np.ndarray
    slot: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    sizes: np.ndarray


class Exchange:
    """A token goes once to every rank of its experts, and a weighted partial sum comes back."""

    @np.errstate(all="ignore")
    def value(
        self, x: np.ndarray, experts: np.ndarray, weights: np.ndarray, scale: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The result and the traffic."""
        sent, sizes, arrived = self.arrived(x, experts, weights, len(scale))
        done = [self.expert_sum(rank, *rows, wide(scale)) for rank, rows in enumerate(arrived)]
        back = self.give_back(done, sizes)
        y = [self.combine(*mine, x.shape[1:]) for mine in zip(sent, back, strict=True)]
        return {"y": np.stack(y).astype(x.dtype)} | self.traffic(sent)

    @np.errstate(all="ignore")
    def vjp(
        self,
        x: np.ndarray,
        experts: np.ndarray,
        weights: np.ndarray,
        scale: np.ndarray,
        cotangent: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gradients: cotangents go the way of the tokens, and theirs come back."""
        sent, sizes, arrived = self.arrived(x, experts, weights, len(scale))
        dy = self.dispatch(self.rows(sent, cotangent), sizes)
        parts = [
            self.expert_vjp(rank, *rows, dy[rank], wide(scale)) for rank, rows in enumerate(arrived)
        ]
        dx, dw = (self.give_back([part[i] for part in parts], sizes) for i in (0, 1))
        dx = [self.onto_tokens(*mine, x.shape[1:]) for mine in zip(sent, dx, strict=True)]
        dw = [self.onto_slots(*mine, experts.shape[1:]) for mine in zip(sent, dw, strict=True)]
        ds = self.over_ranks([part[2] for part in parts])
        return np.stack(dx).astype(x.dtype), np.stack(dw).astype(x.dtype), ds.astype(scale.dtype)

    def arrived(
        self, x: np.ndarray, experts: np.ndarray, weights: np.ndarray, num_experts: int
    ) -> tuple[list[Sent], np.ndarray, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """What was sent, how much, and the rows, ids and weights that each rank got."""
        ranks = len(experts)
        home = self.home(experts, num_experts, ranks)
        sent = [self.pack(r, experts[r], weights[r], home[r], ranks) for r in range(ranks)]
        sizes = self.sizes(sent)
        rows = self.dispatch(self.rows(sent, x), sizes)
        ids = self.dispatch([s.experts for s in sent], sizes)
        return sent, sizes, list(zip(rows, ids, self.weights_there(sent, sizes), strict=True))

    def rows(self, sent: list[Sent], x: np.ndarray) -> list[np.ndarray]:
        """What travels of an array of tokens, in float32."""
        return [wide(x[rank])[s.token] for rank, s in enumerate(sent)]

    def home(self, ids: np.ndarray, num_experts: int, ranks: int) -> np.ndarray:
        """Rank of each expert; -1 for none. Ranks take one expert more until all have a place."""
        return np.where(ids >= 0, ids // -(-num_experts // ranks), -1)

    def pack(
        self, rank: int, experts: np.ndarray, weights: np.ndarray, home: np.ndarray, ranks: int
    ) -> Sent:
        """Each token once for each rank, with the slots that are meant for it."""
        goal, token = np.nonzero((home[None] == np.arange(ranks)[:, None, None]).any(axis=2))
        mine = home[token] == goal[:, None]
        return Sent(
            rank=rank,
            token=token,
            goal=goal,
            slot=np.broadcast_to(np.arange(experts.shape[1]), mine.shape),
            experts=np.where(mine, experts[token], -1),
            weights=self.masked(wide(weights)[token], mine),
            sizes=np.bincount(goal, minlength=ranks),
        )

    def masked(self, weights: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """The weights of the slots that are meant."""
        return np.where(mine, weights, 0)

    def sizes(self, sent: list[Sent]) -> np.ndarray:
        """[source, destination], as all ranks gather them."""
        return np.stack([s.sizes for s in sent])

    def dispatch(self, operands: list[np.ndarray], sizes: np.ndarray) -> list[np.ndarray]:
        """Every rank's rows to their destinations, the rows of rank 0 first."""
        outputs = ragged_all_to_all(
            operands, sizes, self.at_sender(sizes), self.at_receiver(sizes), self.room(sizes)
        )
        return [rows[:n] for rows, n in zip(outputs, sizes.sum(axis=0), strict=True)]

    def at_sender(self, sizes: np.ndarray) -> np.ndarray:
        """Where the block for each destination begins among a rank's own rows."""
        return np.cumsum(sizes, axis=1) - sizes

    def at_receiver(self, sizes: np.ndarray) -> np.ndarray:
        """Where each source's block begins among the rows of its destination."""
        return np.cumsum(sizes, axis=0) - sizes

    def room(self, sizes: np.ndarray) -> int:
        """Rows of a receive buffer: all there are."""
        return int(sizes.sum())

    def weights_there(self, sent: list[Sent], sizes: np.ndarray) -> list[np.ndarray]:
        """The weights of the rows that each rank got."""
        return self.dispatch([s.weights for s in sent], sizes)

    def expert_sum(
        self, rank: int, x: np.ndarray, experts: np.ndarray, weights: np.ndarray, scale: np.ndarray
    ) -> np.ndarray:
        """The weighted sum of what a rank's experts make of each row."""
        total = np.zeros_like(x)
        for copy in range(experts.shape[1]):
            here = experts[:, copy] >= 0
            factor = self.factor(scale, experts[:, copy], here)
            total[here] += weights[here, copy, None] * (factor[:, None] * x)[here]
        return total

    def factor(self, scale: np.ndarray, ids: np.ndarray, here: np.ndarray) -> np.ndarray:
        """The expert's factor of each row."""
        return scale[np.where(here, ids, 0)]

    def give_back(self, operands: list[np.ndarray], sizes: np.ndarray) -> list[np.ndarray]:
        """Every rank's results to the ranks their rows came from, in the order they were sent."""
        outputs = ragged_all_to_all(
            operands,
            sizes.T,
            self.at_receiver(sizes).T,
            self.at_sender(sizes).T,
            self.room(sizes),
        )
        return [rows[:n] for rows, n in zip(outputs, sizes.sum(axis=1), strict=True)]

    def combine(self, sent: Sent, back: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Add the partial sums of each token, rank after rank."""
        y = np.zeros(shape, back.dtype)
        np.add.at(y, sent.token, back)
        return y

    def traffic(self, sent: list[Sent]) -> dict[str, np.ndarray]:
        """Rows and copies from rank to rank."""
        copies = [
            np.bincount(s.goal, (s.experts >= 0).sum(axis=1), len(sent)).astype(np.int64)
            for s in sent
        ]
        return {"rows_sent": self.sizes(sent), "copies_sent": np.stack(copies)}

    def expert_vjp(
        self,
        rank: int,
        x: np.ndarray,
        experts: np.ndarray,
        weights: np.ndarray,
        dy: np.ndarray,
        scale: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gradients of the rows a rank got, of their weights, and of all experts."""
        dx, dw, ds = np.zeros_like(x), np.zeros(experts.shape, x.dtype), np.zeros_like(scale)
        for copy in range(experts.shape[1]):
            here = np.flatnonzero(experts[:, copy] >= 0)
            ids, w = experts[here, copy], weights[here, copy]
            dx[here] += (w * scale[ids])[:, None] * dy[here]
            along = (dy[here] * x[here]).sum(axis=1)
            dw[here, copy] = scale[ids] * along
            np.add.at(ds, ids, w * along)
        return dx, dw, ds

    def onto_tokens(self, sent: Sent, back: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The gradient of a rank's tokens: the sum over the ranks they went to."""
        return Exchange.combine(self, sent, back, shape)

    def onto_slots(self, sent: Sent, back: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The gradient of a rank's weights."""
        dw = np.zeros(shape, back.dtype)
        row, copy = np.nonzero(sent.experts >= 0)
        dw[sent.token[row], sent.slot[row, copy]] = back[row, copy]
        return dw

    def over_ranks(self, parts: list[np.ndarray]) -> np.ndarray:
        """The gradient of the experts: each rank has that of its own."""
        return np.sum(parts, axis=0)


def ragged_all_to_all(
    operands: list[np.ndarray],
    sizes: np.ndarray,
    input_offsets: np.ndarray,
    output_offsets: np.ndarray,
    room: int,
) -> list[np.ndarray]:
    """What `jax.lax.ragged_all_to_all` does on all ranks at once.

    Rows [input_offsets[i, j], ... + sizes[i, j]) of rank i go to rank j, from row
    output_offsets[i, j] on. Buffers of `room` rows are unwritten before, and what would lie
    outside of them is lost.
    """
    empty = operands[0]
    unwritten = np.nan if empty.dtype.kind == "f" else 0
    outputs = [np.full((room, *empty.shape[1:]), unwritten, empty.dtype) for _ in operands]
    for (i, j), n in np.ndenumerate(sizes):
        block = operands[i][input_offsets[i, j] :][:n]
        at = output_offsets[i, j] + np.arange(len(block))
        inside = (at >= 0) & (at < room)
        outputs[j][at[inside]] = block[inside]
    return outputs
