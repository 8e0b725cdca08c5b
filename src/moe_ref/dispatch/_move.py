"""Move rows by a plan. Forward and backward are gathers: deterministic, and no scatter-add."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype
from moe_ref._typing import checked
from moe_ref.dispatch._plan import Plan


@checked
def permute(x: Float[Array, "tokens d"], plan: Plan) -> Float[Array, "rows d"]:
    """Copy each token to its rows.

    Args:
        x: tokens.
        plan: where the copies go.

    Returns:
        Rows; 0 where unfilled. The gradient sums a token's rows in float32 at least, slot order.

    Raises:
        ValueError: `x` and the plan disagree about the number of tokens.
    """
    tokens, k = plan.row.shape
    require(x.shape[0] == tokens, "x", f"of the plan's {tokens} tokens", f"shape {x.shape}")
    return _gather(x, plan.slot // max(k, 1), plan.filled, plan.row, plan.kept)


@checked
def permute_weights(weights: Float[Array, "tokens k"], plan: Plan) -> Float[Array, "rows 1"]:
    """The weight of each row, as a column; 0 where unfilled.

    Raises:
        ValueError: `weights` and the plan disagree about the number of slots.
    """
    _check_slots(weights, plan)
    column = weights.reshape(-1, 1)
    back, kept = plan.row.reshape(-1, 1), plan.kept.reshape(-1, 1)
    return _gather(column, plan.slot, plan.filled, back, kept)


@checked
def unpermute(rows: Float[Array, "rows d"], plan: Plan) -> Float[Array, "tokens k d"]:
    """Bring each slot's row back to its token.

    Args:
        rows: one row a copy.
        plan: the plan they were permuted by.

    Returns:
        The row of every slot; 0 for slots without one.

    Raises:
        ValueError: `rows` and the plan disagree about the number of rows.
    """
    planned = plan.slot.shape[0]
    require(rows.shape[0] == planned, "rows", f"the plan's {planned} rows", f"shape {rows.shape}")
    tokens, k = plan.row.shape
    flat = _gather(
        rows, plan.row.reshape(-1), plan.kept.reshape(-1), plan.slot[:, None], plan.filled[:, None]
    )
    return flat.reshape(tokens, k, rows.shape[1])


@checked
def combine(
    rows: Float[Array, "rows d"], weights: Float[Array, "tokens k"] | None, plan: Plan
) -> Float[Array, "tokens d"]:
    r"""Weighted sum of each token's rows: $y_t = \sum_j w_{tj}\,r_{row(t,j)}$.

    Args:
        rows: expert outputs.
        weights: weight of each slot; None where they were applied inside the expert.
        plan: the plan the rows were permuted by.

    Returns:
        The sum in slot order, in float32 at least and not yet rounded: the caller rounds once.

    Raises:
        ValueError: `rows` or `weights` and the plan disagree about their number.

    Special cases:
        Dropped and empty slots contribute exactly 0, also to the gradient of `weights`.
    """
    if weights is None:
        return jnp.sum(unpermute(rows, plan).astype(accumulator_dtype(rows.dtype)), axis=1)
    _check_slots(weights, plan)
    return _weighted(rows, weights, plan)


@jax.custom_vjp
def _weighted(
    rows: Float[Array, "rows d"], weights: Float[Array, "tokens k"], plan: Plan
) -> Float[Array, "tokens d"]:
    """The weighted sum; its gradient goes to rows and to slots without an array of both."""
    slots = unpermute(rows, plan)
    wide = accumulator_dtype(rows.dtype)
    kept = jnp.where(plan.kept, weights.astype(wide), jnp.zeros_like(weights, wide))
    return jnp.sum(kept[:, :, None] * slots.astype(wide), axis=1)


def _weighted_fwd(rows, weights, plan):
    return _weighted(rows, weights, plan), (rows, weights, plan)


def _weighted_bwd(residuals, cotangent):
    rows, weights, plan = residuals
    wide = cotangent.dtype
    own = permute_weights(weights, plan).astype(wide) * permute(cotangent, plan)
    products = unpermute(rows, plan).astype(wide) * cotangent[:, None, :]
    sums = jnp.sum(products, axis=2)
    along = jnp.where(plan.kept, sums, jnp.zeros_like(sums))
    return own.astype(rows.dtype), along.astype(weights.dtype), None


_weighted.defvjp(_weighted_fwd, _weighted_bwd)


@jax.custom_vjp
def _gather(
    source: Float[Array, "m d"],
    index: Int[Array, " n"],
    valid: Bool[Array, " n"],
    back: Int[Array, "m copies"],
    back_valid: Bool[Array, "m copies"],
) -> Float[Array, "n d"]:
    """Rows `source[index]`, 0 where not valid. `back` lists, for each source row, its copies."""
    if source.shape[0] == 0:
        return jnp.zeros((index.shape[0], source.shape[1]), source.dtype)
    safe = jnp.where(valid, index, jnp.zeros_like(index))
    taken = source.at[safe].get(mode="promise_in_bounds")
    return jnp.where(valid[:, None], taken, jnp.zeros_like(taken))


def _gather_fwd(source, index, valid, back, back_valid):
    return _gather(source, index, valid, back, back_valid), (index, valid, back, back_valid)


def _gather_bwd(residuals, cotangent):
    index, valid, back, back_valid = residuals
    rows, copies = back.shape
    flat = _gather(
        cotangent, back.reshape(-1), back_valid.reshape(-1), index[:, None], valid[:, None]
    )
    wide = accumulator_dtype(cotangent.dtype)
    total = jnp.sum(flat.reshape(rows, copies, cotangent.shape[1]).astype(wide), axis=1)
    return total.astype(cotangent.dtype), None, None, None, None


_gather.defvjp(_gather_fwd, _gather_bwd)


def _check_slots(weights: Float[Array, "tokens k"], plan: Plan) -> None:
    tokens, k = plan.row.shape
    require(
        weights.shape == (tokens, k),
        "weights",
        f"one for each of the plan's {tokens} tokens and {k} slots",
        f"shape {weights.shape}",
    )
