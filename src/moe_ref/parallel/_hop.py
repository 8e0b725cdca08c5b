"""A hop: one exchange, what is computed inside it, and the way back. Hops nest."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt8

from moe_ref._varying import vary_together
from moe_ref.experts import Experts
from moe_ref.parallel._exchange import collect, kept_slots, send
from moe_ref.parallel._leaf import Leaf, run_leaf
from moe_ref.parallel._level import Level
from moe_ref.parallel._traffic import Queue, Traffic, queue, traffic

Result = tuple[Float[Array, "rows d"], Bool[Array, "rows k"]]


def run(
    levels: tuple[Level, ...],
    leaf: Leaf,
    experts: Experts,
    x: Float[Array, "rows d"],
    codes: UInt8[Array, "rows bytes"] | None,
    weights: Float[Array, "rows k"],
    ids: Int[Array, "rows k"],
) -> Result:
    """The weighted sum of each row over the experts below these levels, and which slots took part.

    Args:
        levels: exchanges, outermost first; none: the experts are here.
        leaf: what is computed at the end.
        experts: parameters of this rank.
        x: rows in the accumulator's dtype, exact in the leaf's.
        codes: what crosses in place of x; None: x does.
        weights: in the accumulator's dtype.
        ids: experts below these levels, -1 for none.
    """
    if not levels:
        return run_leaf(leaf, experts, x, weights, ids)
    level = levels[0]
    if level.transport == "rounds":
        return _rounds(levels, leaf, experts, x, codes, weights, ids), ids >= 0
    way = traffic(level, queue(level, ids))
    partial, inner = _inside(levels, leaf, experts, x, codes, weights, ids, way)
    if any(deeper.may_drop for deeper in levels):
        kept = kept_slots(level, ids, inner, way)
    else:
        kept = ids >= 0
    return collect(level, partial, way), kept


def _inside(levels, leaf, experts, x, codes, weights, ids, way: Traffic) -> Result:
    """What the ranks of the first exchange compute for the rows they get."""
    got = send(levels[0], x, codes, weights, ids, way)
    rows, own_codes, own_weights, own_ids = got  # pyright: ignore[reportGeneralTypeIssues]
    return run(levels[1:], leaf, experts, rows, own_codes, own_weights, own_ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounds(levels, leaf, experts, x, codes, weights, ids) -> Float[Array, "rows d"]:
    """As many exchanges of a fixed size as the fullest pair of ranks needs.

    The number is not known while tracing, so the gradient is a loop of its own, which computes
    each round again.
    """
    waiting = queue(levels[0], ids)

    def add(i, total):
        return total + _round(levels, leaf, experts, x, codes, weights, ids, waiting, i)

    parameters: list[jax.Array] = jax.tree.leaves(experts)
    zero, *_ = vary_together(jnp.zeros_like(x), x, weights, ids, *parameters)
    return lax.fori_loop(0, _number(levels[0], waiting), add, zero)


def _rounds_fwd(levels, leaf, *operands):
    return _rounds(levels, leaf, *operands), operands


def _rounds_bwd(levels, leaf, residuals, cotangent):
    experts, x, codes, weights, ids = residuals
    waiting = queue(levels[0], ids)
    moving = (experts, x, weights)

    def add(i, total):
        def one(experts, x, weights):
            return _round(levels, leaf, experts, x, codes, weights, ids, waiting, i)

        gradients = jax.vjp(one, *moving)[1](cotangent)
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, gradients)

    wide = x.dtype
    leaves, structure = jax.tree.flatten(moving)
    zeros = [jnp.zeros_like(a, wide) for a in leaves]
    start = jax.tree.unflatten(structure, vary_together(*zeros, *leaves, ids)[: len(zeros)])
    total = lax.fori_loop(0, _number(levels[0], waiting), add, start)
    for_experts, for_x, for_weights = jax.tree.map(lambda a, b: a.astype(b.dtype), total, moving)
    return for_experts, for_x, None, for_weights, None


_rounds.defvjp(_rounds_fwd, _rounds_bwd)


def _round(
    levels, leaf, experts, x, codes, weights, ids, waiting: Queue, i
) -> Float[Array, "rows d"]:
    level = levels[0]
    way = traffic(level, waiting, i.astype(jnp.int32) * level.pair)
    partial, _ = _inside(levels, leaf, experts, x, codes, weights, ids, way)
    return collect(level, partial, way)


def _number(level: Level, waiting: Queue) -> Int[Array, ""]:
    """Rounds needed, the same on every rank that takes part in any collective of a round.

    A count that differed over an axis of a collective inside would leave ranks waiting for ever.
    """
    most = jnp.max(waiting.counts)
    axes = set(level.axes) | jax.typeof(most).mat.varying
    return lax.pmax((most + level.pair - 1) // level.pair, tuple(sorted(axes)))
