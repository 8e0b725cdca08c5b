"""`lax.ragged_all_to_all` where a backend has none."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped


def emulate_ragged_all_to_all(
    operand: Shaped[Array, "rows d"],
    output: Shaped[Array, "received d"],
    input_offsets: Int[Array, " ranks"],
    send_sizes: Int[Array, " ranks"],
    output_offsets: Int[Array, " ranks"],
    recv_sizes: Int[Array, " ranks"],
    *,
    axis_name: str,
) -> Shaped[Array, "received d"]:
    """Do what `jax.lax.ragged_all_to_all` does, by a padded `all_to_all`.

    XLA on CPU has no ragged all-to-all. Pass this to `ExpertParallel(ragged=...)`, `dispatch` or
    your own program there; nothing is patched. Sends `ranks` times the rows of `operand`.

    Args:
        operand: rows to send, a block for each rank.
        output: rows to be overwritten.
        input_offsets: where each block begins in `operand`.
        send_sizes: its rows.
        output_offsets: where it begins in the receiver's `output`.
        recv_sizes: rows that come from each rank.
        axis_name: mesh axis.

    Returns:
        `output` with the blocks of all ranks written into it.

    Special cases:
        Rows that no block covers keep their values. Gradients are those of indexing.
    """
    ranks = input_offsets.shape[0]
    number = jnp.arange(operand.shape[0], dtype=jnp.int32)
    mine = number[None, :] < send_sizes[:, None]
    at = jnp.where(mine, input_offsets[:, None] + number[None, :], jnp.zeros_like(mine, jnp.int32))
    blocks = operand[at.reshape(-1)].reshape(ranks, *operand.shape)
    blocks = lax.all_to_all(blocks, axis_name, 0, 0, tiled=True)
    begin = lax.all_to_all(output_offsets, axis_name, 0, 0, tiled=True)
    came = number[None, :] < recv_sizes[:, None]
    past = jnp.full_like(came, output.shape[0], jnp.int32)
    lands = jnp.where(came, begin[:, None] + number[None, :], past)
    rows = blocks.reshape(-1, operand.shape[1])
    return output.at[lands.reshape(-1)].set(rows, mode="drop")
