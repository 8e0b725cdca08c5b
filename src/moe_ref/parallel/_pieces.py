"""Dispatch and combine on their own, for one mesh axis."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from moe_ref._errors import require, require_choice
from moe_ref._numerics import accumulator_dtype, float_dtype
from moe_ref._typing import checked
from moe_ref._varying import vary_together
from moe_ref.parallel._exchange import collect, send
from moe_ref.parallel._level import Bounded, Level, fair_rows, sizes
from moe_ref.parallel._plan import share
from moe_ref.parallel._traffic import Traffic, queue, traffic


class Dispatched(eqx.Module):
    """The rows that a rank got.

    `allgather`: row s * tokens + t is token t of source s, whether it is meant or not. `alltoall`:
    each source has a block of the same size, filled from its beginning, in token order. `ragged`:
    sources one after the other without gaps, in token order. With dedup a row has all slots of
    its token, without it one.

    Attributes:
        x: rows; those without an expert here hold anything.
        experts: local ids of each row's slots, -1 for those of other ranks and of no one.
        weights: of each slot; anything where the id is -1.
        sent: of this rank's own tokens: which columns (destinations, or slots) found a place.
        traffic: what `combine` needs.
        level: what `combine` needs.
    """

    x: Float[Array, "rows d"]
    experts: Int[Array, "rows slots"]
    weights: Float[Array, "rows slots"]
    sent: Bool[Array, "tokens columns"]
    traffic: Traffic
    level: Level = eqx.field(static=True)


@checked
def dispatch(
    x: Float[Array, "tokens d"],
    experts: Int[Array, "tokens k"],
    weights: Float[Array, "tokens k"],
    *,
    axis: str,
    num_experts: int,
    transport: Literal["allgather", "alltoall", "ragged"] = "alltoall",
    dedup: bool = True,
    receive: Bounded | None = None,
    return_dtype: DTypeLike | None = None,
    ragged: Callable[..., Any] = lax.ragged_all_to_all,
) -> Dispatched:
    """Send each token to the ranks of its experts, inside `jax.shard_map`.

    Under `jax.vmap(..., axis_name=axis)` the ranks are simulated on one device.

    Args:
        x: this rank's tokens.
        experts: chosen ids, of all ranks' experts; ids outside [0, num_experts) go nowhere.
        weights: of each slot.
        axis: mesh axis; rank r has the experts from r * num_experts / ranks on.
        num_experts: of all ranks.
        transport: how rows cross; `rounds` has no receive buffer to hand out.
        dedup: a token once for each rank, else once a slot.
        receive: a bounded receive buffer; None: the worst case.
        return_dtype: of partial sums and gradients on the wire; None: the accumulator's.
        ragged: what `ragged` calls.

    Returns:
        The rows of this rank. Gradients with respect to `x` are summed over ranks in the
        accumulator's dtype and rounded once.

    Raises:
        ValueError: ranks that do not divide the experts, or arguments that contradict each other.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from moe_ref import parallel

        # Two ranks, one token each, four experts that multiply by 1, 2, 3 and 4.
        factors = jnp.arange(1.0, 5.0).reshape(2, 2)

        def rank(x, experts, weights, factors):
            got = parallel.dispatch(x, experts, weights, axis="expert", num_experts=4)
            mine = jnp.where(got.experts >= 0, got.weights * factors[got.experts], 0)
            partial = jnp.sum(mine, axis=1, keepdims=True) * got.x
            return parallel.combine(partial, got)

        x, experts = jnp.ones((2, 1, 1)), jnp.array([[[0, 3]], [[1, -1]]])
        y = jax.vmap(rank, axis_name="expert")(x, experts, jnp.ones((2, 1, 2)), factors)
        assert y.tolist() == [[[5.0]], [[2.0]]]
        ```
    """
    require_choice(transport, "transport", ("allgather", "alltoall", "ragged"))
    (tokens, k), ranks = experts.shape, lax.axis_size(axis)
    below = share(num_experts, ranks, "axis")
    plain = receive is None and dedup
    require(plain or transport != "allgather", "transport", "another with these", transport)
    wide = accumulator_dtype(x.dtype)
    fair = fair_rows(
        tokens=tokens, k=k, num_experts=num_experts, below=below, sources=ranks, dedup=dedup
    )
    size = sizes(
        tokens=tokens, k=k, ranks=ranks, transport=transport, dedup=dedup, rows=None,
        bounded=receive, fair=fair,
    )  # fmt: skip
    level = Level(
        axis=axis,
        axes=(axis,),
        ranks=ranks,
        experts=below,
        transport=transport,
        dedup=dedup,
        pair=size.pair,
        receive=size.receive,
        fair=fair,
        survivors=size.survivors,
        dtype=str(x.dtype),
        wire=None,
        back=str(wide if return_dtype is None else float_dtype(return_dtype, "return_dtype")),
        ragged=ragged,
    )
    values = vary_together(x.astype(wide), weights.astype(wide), experts)
    way = traffic(level, queue(level, values[2]))
    wide_x, wide_weights, known = values
    got = send(level, wide_x, None, wide_weights, known, way)
    rows, _, own_weights, ids = got  # pyright: ignore[reportGeneralTypeIssues]
    return Dispatched(rows.astype(x.dtype), ids, own_weights, way.kept, way, level)


@checked
def combine(partial: Float[Array, "rows d"], dispatched: Dispatched) -> Float[Array, "tokens d"]:
    r"""Bring each row's weighted sum back to its token and add them, in the order of ranks.

    $$y_t = \sum_{r} \mathrm{partial}_{\mathrm{row}(t, r)}$$

    Args:
        partial: one weighted sum for each row of `dispatched`; rows without an expert may hold
            anything.
        dispatched: what `dispatch` returned.

    Returns:
        The sums in float32 at least, not yet rounded; 0 for tokens that went nowhere.

    Raises:
        ValueError: another number of rows.
    """
    rows = dispatched.x.shape[0]
    require(partial.shape[0] == rows, "partial", f"of the {rows} rows dispatched", partial.shape)
    wide = accumulator_dtype(partial.dtype)
    return collect(dispatched.level, partial.astype(wide), dispatched.traffic)
