"""The layout in which Blackwell's matrix units read scales, and groups of whole blocks."""

import jax.numpy as jnp
from jaxtyping import Array, Int32, Integer, UInt8

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.grouped._groups import as_int32, offsets

# A tile of 128 rows by 4 scales is 32 runs of 16 bytes: rows 32 apart lie side by side.
_ROWS, _COLUMNS, _RUNS = 128, 4, 32


@checked
def swizzle_scales(scales: UInt8[Array, "rows blocks"]) -> UInt8[Array, "bytes"]:
    r"""Scales in tiles of 128 by 4, as `cuBLAS` and the tensor cores of Blackwell read them.

    Row r and block c of a tile go to byte $16\,(r \bmod 32) + 4 \lfloor r / 32 \rfloor + c$; tiles
    follow each other along blocks, then along rows.

    Args:
        scales: one row for each row of the operand, one column for each block along the
            contraction.

    Returns:
        128 ceil(rows / 128) 4 ceil(blocks / 4) bytes. Those that no scale fills are 0, never
        left to chance: the units read them, and 0xFF would be NaN.

    Raises:
        ValueError: another rank or dtype.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import mx

        scales = jnp.arange(256, dtype=jnp.uint8).reshape(64, 4)
        tile = mx.swizzle_scales(scales)
        assert tile[:8].tolist() == [0, 1, 2, 3, 128, 129, 130, 131]
        assert (mx.unswizzle_scales(tile, 64, 4) == scales).all()
        ```
    """
    rows, blocks = scales.shape
    padded = jnp.pad(scales, ((0, -rows % _ROWS), (0, -blocks % _COLUMNS)))
    down, across = padded.shape[0] // _ROWS, padded.shape[1] // _COLUMNS
    tiles = padded.reshape(down, _ROWS // _RUNS, _RUNS, across, _COLUMNS)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


@checked
def unswizzle_scales(
    swizzled: UInt8[Array, "bytes"], rows: int, blocks: int
) -> UInt8[Array, "{rows} {blocks}"]:
    """Undo `swizzle_scales`, dropping what fills its tiles.

    Args:
        swizzled: what `swizzle_scales` gives for a [rows, blocks] array.
        rows: of the operand.
        blocks: along the contraction.

    Returns:
        The scales.

    Raises:
        ValueError: `swizzled` has another length.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import mx

        tile = jnp.zeros(512, jnp.uint8).at[16].set(7)
        assert mx.unswizzle_scales(tile, 128, 4)[1, 0] == 7
        ```
    """
    require(rows >= 0, "rows", "at least 0", rows)
    require(blocks >= 0, "blocks", "at least 0", blocks)
    down, across = -(-rows // _ROWS), -(-blocks // _COLUMNS)
    size = down * _ROWS * across * _COLUMNS
    require(swizzled.size == size, "swizzled", f"{size} bytes", f"{swizzled.size} bytes")
    tiles = swizzled.reshape(down, across, _RUNS, _ROWS // _RUNS, _COLUMNS)
    whole = tiles.transpose(0, 3, 2, 1, 4).reshape(down * _ROWS, across * _COLUMNS)
    return whole[:rows, :blocks]


@checked
def aligned_rows(
    group_sizes: Integer[Array, " experts"], *, rows: int, alignment: int
) -> Int32[Array, " {rows}"]:
    """Where each row goes when every group starts at a multiple of `alignment`.

    With the rows of the groups one after the other, `padded = zeros(length).at[to].set(x,
    mode="drop")` pads each group with zeros, and `padded.at[to].get(mode="fill", fill_value=0)`
    takes the padding out again. No block of `alignment` values along the rows then belongs to two
    groups.

    Args:
        group_sizes: rows of each group; non-negative, at most `rows` in sum.
        rows: how many rows there are.
        alignment: 32 for the blocks of MX; 128 for kernels with tiles of as many rows.

    Returns:
        A position below `aligned_length` for each row that a group owns; `aligned_length` itself,
        where nothing is, for the others.

    Raises:
        ValueError: `alignment` below 1, or wrong ranks and dtypes.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import mx

        to = mx.aligned_rows(jnp.array([2, 0, 1]), rows=4, alignment=32)
        assert to.tolist() == [0, 1, 32, mx.aligned_length(4, experts=3, alignment=32)]
        ```
    """
    length = aligned_length(rows, experts=group_sizes.shape[0], alignment=alignment)
    starts, ends = offsets(as_int32(group_sizes, rows), rows)
    sizes = ends - starts
    padded = (sizes + (alignment - 1)) // alignment * alignment
    moved = jnp.cumsum(padded - sizes, dtype=jnp.int32) - (padded - sizes)
    row = jnp.arange(rows, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, row, side="right")
    by = jnp.append(moved, 0)[owner]  # of a row that no group owns, the 0
    return jnp.where(owner < len(sizes), row + by, length)


def aligned_length(rows: int, *, experts: int, alignment: int) -> int:
    """Rows that hold any `rows` in `experts` groups, each padded to a multiple of `alignment`.

    Args:
        rows: in all groups together.
        experts: how many groups there are.
        alignment: see `aligned_rows`.

    Returns:
        A multiple of `alignment`.

    Raises:
        ValueError: `alignment` below 1.

    Example:
        ```python
        from moe_ref import mx

        assert mx.aligned_length(70, experts=3, alignment=32) == 160
        ```
    """
    require(alignment >= 1, "alignment", "at least 1", alignment)
    # Every group that is not empty has a row, and pads at most alignment - 1 more.
    return (rows + min(experts, rows) * (alignment - 1)) // alignment * alignment
