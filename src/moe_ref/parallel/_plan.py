"""Who sends which row where, seen from outside: the exchange of all ranks as one pure function."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from moe_ref import dispatch
from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.parallel._destinations import destinations


class ExchangePlan(eqx.Module):
    """The rows of one exchange. Rows that stay on their rank are counted too, on the diagonal.

    A rank's send buffer holds its rows by destination, in token order for each; a rank's receive
    buffer holds them by source. The four arrays of offsets and sizes are those that
    `jax.lax.ragged_all_to_all` takes, one line a rank.

    Attributes:
        rows_sent: rows from rank to rank, a token once for each destination.
        copies_sent: the same without dedup: once for each slot.
        node_rows_sent: rows from rank to node, a token once for each node; None without nodes.
        destination: ranks that a token goes to, ascending; -1 where there are no more.
        send_row: row of the send buffer, for each entry of `destination`; -1 for none.
        receive_row: row of the destination's receive buffer; -1 for none.
        input_offsets: [rank, destination]: where a block begins in the rank's send buffer.
        send_sizes: [rank, destination]: rows of the block.
        output_offsets: [rank, destination]: where it begins in the *destination's* receive buffer.
        recv_sizes: [rank, source]: rows the rank gets.
    """

    rows_sent: Int[Array, "sources ranks"]
    copies_sent: Int[Array, "sources ranks"]
    node_rows_sent: Int[Array, "sources nodes"] | None
    destination: Int[Array, "sources tokens columns"]
    send_row: Int[Array, "sources tokens columns"]
    receive_row: Int[Array, "sources tokens columns"]
    input_offsets: Int[Array, "sources ranks"]
    send_sizes: Int[Array, "sources ranks"]
    output_offsets: Int[Array, "sources ranks"]
    recv_sizes: Int[Array, "ranks sources"]


@checked
def exchange_plan(
    experts: Int[Array, "ranks tokens k"], *, num_experts: int, ranks_per_node: int | None = None
) -> ExchangePlan:
    r"""Plan the exchange of all ranks.

    $$\mathrm{rows}_{sr} = \left|\{t : \exists j,\ \lfloor e_{stj} R / E \rfloor = r\}\right|,
      \qquad
      \mathrm{copies}_{sr} = \left|\{(t, j) : \lfloor e_{stj} R / E \rfloor = r\}\right|$$

    Args:
        experts: chosen ids of every rank's tokens; ids outside [0, num_experts) go nowhere. Rank r
            has the experts from r * num_experts / ranks on.
        num_experts: experts with parameters.
        ranks_per_node: consecutive ranks that share a node; None leaves nodes out.

    Returns:
        The plan. `rows_sent` is what dedup sends, `copies_sent` what is sent without it.

    Raises:
        ValueError: ranks that do not divide the experts, or nodes that do not divide the ranks.

    Special cases:
        An expert that is chosen twice by a token counts twice in `copies_sent`, once in
        `rows_sent`.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import parallel

        # Two ranks of one token each, experts 0 and 1 on rank 0, experts 2 and 3 on rank 1.
        plan = parallel.exchange_plan(jnp.array([[[2, 3]], [[0, 2]]]), num_experts=4)
        assert plan.rows_sent.tolist() == [[0, 1], [1, 1]]
        assert plan.copies_sent.tolist() == [[0, 2], [1, 1]]
        assert plan.output_offsets.tolist() == [[0, 0], [0, 1]]
        ```
    """
    ranks = experts.shape[0]
    require(ranks >= 1, "experts", "of at least 1 rank", f"shape {experts.shape}")
    share(num_experts, ranks, "experts")
    size = ranks_per_node
    fits = size is None or (size >= 1 and ranks % size == 0)
    require(fits, "ranks_per_node", f"a divisor of the {ranks} ranks", size)

    def rows_of(parts: int, dedup: bool):
        def one(ids):
            columns = destinations(ids, parts=parts, experts=num_experts // parts, dedup=dedup)
            return columns, dispatch.plan(columns, num_experts=parts)

        return jax.vmap(one)(experts)

    columns, plan = rows_of(ranks, True)
    sent = plan.group_sizes
    starts = jnp.cumsum(sent, axis=1, dtype=jnp.int32) - sent
    lands = jnp.cumsum(sent, axis=0, dtype=jnp.int32) - sent
    none = jnp.full_like(columns, -1)
    goal = jnp.where(plan.kept, columns, jnp.zeros_like(columns))
    shift = jax.vmap(lambda a, at: a[at])(lands - starts, goal)
    nodes = None if size is None else rows_of(ranks // size, True)[1].group_sizes
    return ExchangePlan(
        rows_sent=sent,
        copies_sent=rows_of(ranks, False)[1].group_sizes,
        node_rows_sent=nodes,
        destination=jnp.where(plan.kept, columns, none),
        send_row=jnp.where(plan.kept, plan.row, none),
        receive_row=jnp.where(plan.kept, plan.row + shift, none),
        input_offsets=starts,
        send_sizes=sent,
        output_offsets=lands,
        recv_sizes=sent.T,
    )


@checked
def expected_destinations(*, num_experts: int, k: int, ranks: int) -> float:
    r"""How many ranks a token visits on average, if its k distinct experts are drawn uniformly.

    $$R \left(1 - \binom{E - E/R}{k} \Big/ \binom{E}{k}\right)$$

    Args:
        num_experts: $E$.
        k: experts of a token.
        ranks: $R$; or nodes.

    Returns:
        The mean, the token's own rank included: (R - 1) / R of it leave the rank.

    Raises:
        ValueError: ranks that do not divide the experts.

    Example:
        ```python
        from moe_ref import parallel

        visited = parallel.expected_destinations(num_experts=256, k=8, ranks=8)
        assert round(visited * 7 / 8, 2) == 4.63
        ```
    """
    rest = num_experts - share(num_experts, ranks, "ranks")
    # More slots than experts: repeats, or zero experts beside them. All ranks are the bound.
    missed = math.comb(rest, k) / math.comb(num_experts, k) if k <= num_experts else 0.0
    return ranks * (1 - missed)


def share(num_experts: int, ranks: int, argument: str) -> int:
    """Experts of a rank; ValueError unless each has as many."""
    divides = ranks >= 1 and num_experts >= 1 and num_experts % ranks == 0
    require(divides, argument, f"of a number of ranks that divides {num_experts} experts", ranks)
    return num_experts // ranks
