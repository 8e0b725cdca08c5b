"""Rows across one mesh axis, forth and back."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Shaped

from moe_ref._varying import vary_together
from moe_ref.parallel import _buffer
from moe_ref.parallel._level import Level
from moe_ref.parallel._traffic import Offsets, Traffic


def spread(
    level: Level, rows: Shaped[Array, "tokens d"], traffic: Traffic
) -> Shaped[Array, "received d"]:
    """Bring each token's row to its destinations."""
    if level.transport == "allgather":
        return lax.all_gather(rows, level.axis, tiled=True)
    return push(level, taken(rows, traffic.token, traffic.filled), traffic)


def taken(
    rows: Shaped[Array, "tokens d"], index: Int[Array, " n"], filled: Bool[Array, " n"]
) -> Shaped[Array, "n d"]:
    """The send buffer; what is not filled is not written."""
    safe = jnp.where(filled, index, jnp.zeros_like(index))
    found = rows.at[safe].get(mode="promise_in_bounds")
    rest = _buffer.unwritten(index.shape[0], rows.shape[1], rows.dtype, found)
    return jnp.where(filled[:, None], found, rest)


def push(
    level: Level, rows: Shaped[Array, "sent d"], traffic: Traffic
) -> Shaped[Array, "received d"]:
    """From the send buffers to the receive buffers."""
    if traffic.offsets is None:
        return _blocks(level, rows)
    o = traffic.offsets
    return _ragged(level, rows, level.receive, o.send_at, o.send, o.lands_at, o.receive)


def fetch(
    level: Level, rows: Shaped[Array, "received d"], traffic: Traffic
) -> Shaped[Array, "sent d"]:
    """From the receive buffers back to where each row was in its send buffer."""
    if traffic.offsets is None:
        return _blocks(level, rows)
    o = traffic.offsets
    sent = traffic.slot.shape[0]
    return _ragged(level, rows, sent, o.receive_at, o.receive, o.returns_at, o.send)


def received(level: Level, offsets: Offsets | None) -> Bool[Array, " rows"] | None:
    """Which rows of a ragged receive buffer are written; None where all are."""
    if offsets is None:
        return None
    total = jnp.sum(offsets.receive, dtype=jnp.int32)
    return jnp.arange(level.receive, dtype=jnp.int32) < total


def _blocks(level: Level, rows: Shaped[Array, "rows d"]) -> Shaped[Array, "rows d"]:
    """Exchange blocks of one size; without rows there is nothing to do."""
    return lax.all_to_all(rows, level.axis, 0, 0, tiled=True) if rows.shape[0] else rows


def _ragged(level: Level, rows: jax.Array, into: int, *blocks: jax.Array) -> jax.Array:
    output = _buffer.unwritten(into, rows.shape[1], rows.dtype, rows)
    return level.ragged(*vary_together(rows, output, *blocks), axis_name=level.axis)
