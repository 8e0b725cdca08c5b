"""What one rank sends, where it lies in the buffers, and what comes back to which token."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from moe_ref import dispatch
from moe_ref.parallel._destinations import destinations
from moe_ref.parallel._level import Level


class Offsets(NamedTuple):
    """Blocks of a ragged exchange, one entry for each other rank.

    Attributes:
        send_at: where a block begins in the send buffer.
        send: its rows.
        receive_at: where a block begins in the receive buffer.
        receive: its rows.
        lands_at: where my block begins in the other's receive buffer.
        returns_at: where the other's block begins in its send buffer.
    """

    send_at: Int[Array, " ranks"]
    send: Int[Array, " ranks"]
    receive_at: Int[Array, " ranks"]
    receive: Int[Array, " ranks"]
    lands_at: Int[Array, " ranks"]
    returns_at: Int[Array, " ranks"]


class Traffic(NamedTuple):
    """The rows of one rank in one exchange.

    Attributes:
        slot: token * columns + column of each row of the send buffer; meaningless if not `filled`.
        filled: the row is sent.
        row: row of the send buffer for each column of a token; meaningless if not `kept`.
        kept: the column has a row.
        offsets: of a ragged exchange.
    """

    slot: Int[Array, " rows"]
    filled: Bool[Array, " rows"]
    row: Int[Array, "tokens columns"]
    kept: Bool[Array, "tokens columns"]
    offsets: Offsets | None

    @property
    def token(self) -> Int[Array, " rows"]:
        """Token of each row of the send buffer."""
        return self.slot // self.row.shape[1]


class Queue(NamedTuple):
    """Columns of all tokens, sorted by destination, in token order for each.

    Attributes:
        goal: destination of each column; the number of ranks for none.
        plan: of the sort.
    """

    goal: Int[Array, "tokens columns"]
    plan: dispatch.Plan

    @property
    def counts(self) -> Int[Array, " ranks"]:
        """Rows for each destination."""
        return self.plan.group_sizes

    @property
    def starts(self) -> Int[Array, " ranks"]:
        """Where a destination's rows begin."""
        return jnp.cumsum(self.counts, dtype=jnp.int32) - self.counts

    @property
    def place(self) -> Int[Array, "tokens columns"]:
        """How many rows go to the same destination before this one."""
        return self.plan.row - self.starts[self.known]

    @property
    def known(self) -> Int[Array, "tokens columns"]:
        """`goal`, with 0 for none."""
        return jnp.where(self.plan.kept, self.goal, jnp.zeros_like(self.goal))


def queue(level: Level, ids: Int[Array, "tokens k"]) -> Queue:
    """Sort what goes to each rank of the axis."""
    goal = destinations(ids, parts=level.ranks, experts=level.experts, dedup=level.dedup)
    return Queue(goal, dispatch.plan(goal, num_experts=level.ranks))


def traffic(level: Level, waiting: Queue, first: Int[Array, ""] | None = None) -> Traffic:
    """Lay out the buffers.

    Args:
        level: the exchange.
        waiting: what is to be sent.
        first: for `rounds`: the first row of each destination that is sent now.
    """
    if level.transport == "ragged":
        return _ragged(level, waiting)
    if level.transport == "allgather":
        tokens = jnp.arange(waiting.goal.shape[0], dtype=jnp.int32)
        row = waiting.known * waiting.goal.shape[0] + tokens[:, None]
        none = jnp.zeros(0, jnp.int32)
        return Traffic(none, none.astype(bool), row, waiting.plan.kept, None)
    return _padded(level, waiting, jnp.zeros((), jnp.int32) if first is None else first)


def _padded(level: Level, waiting: Queue, first: Int[Array, ""]) -> Traffic:
    """`pair` rows for each destination, whatever their number."""
    number = first + jnp.arange(level.pair, dtype=jnp.int32)
    filled = number[None, :] < waiting.counts[:, None]
    at = jnp.where(
        filled, waiting.starts[:, None] + number[None, :], jnp.zeros_like(filled, jnp.int32)
    )
    place = waiting.place - first
    return Traffic(
        slot=waiting.plan.slot[at.reshape(-1)],
        filled=filled.reshape(-1),
        row=waiting.known * level.pair + place,
        kept=waiting.plan.kept & (place >= 0) & (place < level.pair),
        offsets=None,
    )


def _ragged(level: Level, waiting: Queue) -> Traffic:
    """The queue itself is the send buffer; blocks that are cut short leave holes in it."""
    counts = lax.all_gather(waiting.counts, level.axis)
    allowed = survive(counts, rows=level.receive, pair=level.pair, survivors=level.survivors)
    me = lax.axis_index(level.axis)
    starts = jnp.cumsum(counts, axis=1, dtype=jnp.int32) - counts
    lands = jnp.cumsum(allowed, axis=0, dtype=jnp.int32) - allowed
    offsets = Offsets(
        send_at=starts[me],
        send=allowed[me],
        receive_at=lands[:, me],
        receive=allowed[:, me],
        lands_at=lands[me],
        returns_at=starts[:, me],
    )
    slot_goal = waiting.goal.reshape(-1)[waiting.plan.slot]
    last = jnp.append(starts[me] + allowed[me], jnp.zeros(1, jnp.int32))
    number = jnp.arange(waiting.plan.slot.shape[0], dtype=jnp.int32)
    return Traffic(
        slot=waiting.plan.slot,
        filled=waiting.plan.filled & (number < last[slot_goal]),
        row=waiting.plan.row,
        kept=waiting.plan.kept & (waiting.place < allowed[me][waiting.known]),
        offsets=offsets,
    )


def survive(
    counts: Int[Array, "sources ranks"], *, rows: int, pair: int, survivors: str | None
) -> Int[Array, "sources ranks"]:
    """How many of each source's rows have a place at each destination.

    Args:
        counts: rows to be sent.
        rows: of a receive buffer.
        pair: of each source in it, for `per_source`.
        survivors: the policy; None: all fit.
    """
    if survivors is None:
        return counts
    if survivors == "per_source":
        return jnp.minimum(counts, pair)
    before = jnp.cumsum(counts, axis=0, dtype=jnp.int32) - counts
    return jnp.clip(rows - before, 0, counts)
