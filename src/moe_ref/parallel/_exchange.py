"""Dispatch and combine over one mesh axis, each the other's gradient.

Values come in the accumulator's dtype and leave in it; what is on the wire is named by the level.
So a gradient that comes back from several ranks is summed before it is rounded.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt8

from moe_ref.parallel._codes import unpacked
from moe_ref.parallel._level import Level
from moe_ref.parallel._traffic import Traffic
from moe_ref.parallel._wire import fetch, push, received, spread, taken
from moe_ref.routing._ids import known


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def send(
    level: Level,
    x: Float[Array, "tokens d"],
    codes: UInt8[Array, "tokens bytes"] | None,
    weights: Float[Array, "tokens k"],
    ids: Int[Array, "tokens k"],
    traffic: Traffic,
) -> tuple[
    Float[Array, "rows d"],
    UInt8[Array, "rows bytes"] | None,
    Float[Array, "rows slots"],
    Int[Array, "rows slots"],
]:
    """Rows, weights and ids on the ranks of their experts.

    Where there are codes, they cross in place of x, whose gradient is the same as without them, and
    are returned, so that the next exchange need not quantise again.

    Ids are those below this rank, -1 for all others and for rows that hold nothing. With dedup a
    row has all slots of its token, without it the one it stands for.
    """
    if codes is None:
        rows = spread(level, x.astype(level.dtype), traffic).astype(x.dtype)
    else:
        assert level.wire is not None
        codes = spread(level, codes, traffic)
        rows = unpacked(level.wire, codes, x.shape[1]).astype(x.dtype)
    bits = _bits(weights)
    if level.transport == "allgather":
        ids, bits = (lax.all_gather(a, level.axis, tiled=True) for a in (ids, bits))
    else:
        ids, bits = _meta(level, ids, bits, traffic)
    mine = ids - lax.axis_index(level.axis).astype(ids.dtype) * level.experts
    mine, _ = known(mine, count=level.experts, otherwise=-1)
    return rows, codes, _floats(bits, weights.dtype), mine


def _meta(level: Level, ids, bits, traffic: Traffic):
    """Ids and weights in one message."""
    width = bits.shape[1] // ids.shape[1]
    if level.dedup:
        index = traffic.token
    else:
        ids, bits, index = ids.reshape(-1, 1), bits.reshape(-1, width), traffic.slot
    sent = taken(jnp.concatenate([ids, bits], axis=1), index, traffic.filled)
    slots = ids.shape[1]
    # Ids are read everywhere, so they are written everywhere; ragged rows are known by number.
    nothing = jnp.full_like(sent[:, :slots], -1)
    own = jnp.where(traffic.filled[:, None], sent[:, :slots], nothing)
    got = push(level, jnp.concatenate([own, sent[:, slots:]], axis=1), traffic)
    ids, bits = got[:, :slots], got[:, slots:]
    written = received(level, traffic.offsets)
    if written is not None:
        ids = jnp.where(written[:, None], ids, jnp.full_like(ids, -1))
    return ids, bits


def _send_fwd(level, x, codes, weights, ids, traffic):
    return send(level, x, codes, weights, ids, traffic), traffic


def _send_bwd(level, traffic, cotangents):
    dx, _, dw, _ = cotangents
    both = jnp.concatenate([dx, dw], axis=1).astype(level.back)
    rows = fetch(level, both, traffic)
    d = dx.shape[1]
    for_x = summed(rows[:, :d], traffic, dx.dtype)
    if level.dedup:
        return for_x, None, summed(rows[:, d:], traffic, dw.dtype), None, None
    column = rows[traffic.row.reshape(-1), d].reshape(traffic.row.shape)
    for_w = jnp.where(traffic.kept, column, jnp.zeros_like(column)).astype(dw.dtype)
    return for_x, None, for_w, None, None


send.defvjp(_send_fwd, _send_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def collect(
    level: Level, partial: Float[Array, "rows d"], traffic: Traffic
) -> Float[Array, "tokens d"]:
    """Bring partial sums back and add those of a token, in the order of its columns."""
    return summed(fetch(level, partial.astype(level.back), traffic), traffic, partial.dtype)


def _collect_fwd(level, partial, traffic):
    return collect(level, partial, traffic), traffic


def _collect_bwd(level, traffic, cotangent):
    return spread(level, cotangent.astype(level.back), traffic).astype(cotangent.dtype), None


collect.defvjp(_collect_fwd, _collect_bwd)


def kept_slots(
    level: Level, ids: Int[Array, "tokens k"], inner: Bool[Array, "rows slots"], traffic: Traffic
) -> Bool[Array, "tokens k"]:
    """Which slots were processed, from what their ranks say."""
    said = fetch(level, inner.astype(jnp.int8), traffic) > 0
    if not level.dedup:
        return traffic.kept & said[traffic.row.reshape(-1), 0].reshape(ids.shape)
    found = jnp.zeros_like(ids, bool)
    for column in range(traffic.row.shape[1]):
        row, sent = traffic.row[:, column], traffic.kept[:, column]
        found |= sent[:, None] & said[jnp.where(sent, row, jnp.zeros_like(row))]
    return found


def summed(rows: Shaped[Array, "sent d"], traffic: Traffic, dtype) -> Float[Array, "tokens d"]:
    """Sum of each token's rows, column after column."""
    columns = traffic.row.shape[1]

    def column(row, sent):
        found = rows.at[jnp.where(sent, row, jnp.zeros_like(row))].get(mode="promise_in_bounds")
        return jnp.where(sent[:, None], found, jnp.zeros_like(found)).astype(dtype)

    first, *others = (column(traffic.row[:, c], traffic.kept[:, c]) for c in range(columns))
    return functools.reduce(jnp.add, others, first)


def _bits(weights: Float[Array, "tokens k"]) -> Int[Array, "tokens words"]:
    tokens, k = weights.shape
    bits = lax.bitcast_convert_type(weights, jnp.int32)
    return bits.reshape(tokens, k * _words(weights.dtype))


def _floats(bits: Int[Array, "rows words"], dtype: jnp.dtype) -> Float[Array, "rows slots"]:
    words = _words(dtype)
    if words > 1:
        bits = bits.reshape(bits.shape[0], bits.shape[1] // words, words)
    return lax.bitcast_convert_type(bits, dtype)


def _words(dtype: jnp.dtype) -> int:
    """How many int32 hold a number."""
    return jnp.dtype(dtype).itemsize // 4
