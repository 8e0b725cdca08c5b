"""Rows times the matrix of their group on Hopper: tiles of rows that belong to one group each."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from moe_ref.grouped import _mosaic_pipeline as pipeline
from moe_ref.grouped._groups import offsets
from moe_ref.grouped._mosaic_pipeline import ALIGNED, CHUNK, LINE, Tiles


class Schedule(NamedTuple):
    """Tiles of rows, on the device.

    Attributes:
        group: of each tile; the number of groups for tiles of rows that no group owns.
        start: first row of the tile, a multiple of `ALIGNED`.
        first: first row of the group in the tile.
        end: row after the group's last in the tile.
        total: how many tiles there are, an array of one.
    """

    group: Int32[Array, " tiles"]
    start: Int32[Array, " tiles"]
    first: Int32[Array, " tiles"]
    end: Int32[Array, " tiles"]
    total: Int32[Array, "1"]


def schedule(group_sizes: Int32[Array, " groups"], rows: int, tile_m: int) -> Schedule:
    """Cover every group, and then the tail, with tiles of `tile_m` rows."""
    starts, ends = offsets(group_sizes, rows)
    firsts = jnp.concatenate([starts, ends[-1:]])
    ends = jnp.concatenate([ends, jnp.full((1,), rows, jnp.int32)])
    starts = firsts // ALIGNED * ALIGNED
    needed = jnp.where(ends > firsts, (ends - starts + tile_m - 1) // tile_m, 0)
    last = jnp.cumsum(needed, dtype=jnp.int32)
    # Down to alignment and up to whole tiles costs each group less than two tiles.
    most = rows // tile_m + 2 * ends.shape[0]
    tile = jnp.arange(most, dtype=jnp.int32)
    before = tile[:, None] >= last[None, :]
    group = jnp.sum(before, axis=1, dtype=jnp.int32)
    own = group[:, None] == jnp.arange(ends.shape[0], dtype=jnp.int32)[None, :]

    def pick(a):
        return jnp.sum(jnp.where(own, a[None, :], 0), axis=1, dtype=jnp.int32)

    nth = tile - jnp.max(jnp.where(before, last[None, :], 0), axis=1)
    start = pick(starts) + nth * tile_m
    first = jnp.maximum(pick(firsts), start)
    return Schedule(group, start, first, jnp.minimum(pick(ends), start + tile_m), last[-1:])


def rows(
    x: Float[Array, "rows a"],
    w: Float[Array, "groups k n"],
    group_sizes: Int32[Array, " groups"],
    *,
    transpose: bool,
    dtype: jnp.dtype,
    tiles: Tiles,
    interpret: Any = None,
) -> Float[Array, "rows b"]:
    """`Kernel.rows` for operands of one narrow dtype with aligned sizes."""
    m, k = x.shape
    groups, n = w.shape[0], w.shape[1 if transpose else 2]
    tile_m, tile_n, tile_k, stages, strip = tiles
    block = (tile_n, tile_k) if transpose else (tile_k, tile_n)
    half = tile_n // 2
    line = LINE // jnp.dtype(dtype).itemsize
    across = pl.cdiv(n, tile_n)
    buffers = pipeline.outgoing(tiles, x.dtype.itemsize, jnp.dtype(dtype).itemsize, reserved=1)

    def body(group, start, first, end, total, x_, w_, y_, slots, whole, part):
        def tile(index):
            down, column = plgpu.planar_snake(index, (total[0], across), 1, strip)
            row = pl.multiple_of(start[down], ALIGNED)
            mine = group[down]
            trips = jnp.where(mine < groups, jnp.int32(pl.cdiv(k, tile_k)), jnp.int32(0))
            return down, row, column * tile_n, mine, trips

        def load(index, turn):
            _, row, column, mine, trips = tile(index)

            def copy(i, slot):
                at, columns = pl.ds(i * tile_k, tile_k), pl.ds(column, tile_n)
                full = slots.full.at[slot]
                plgpu.copy_gmem_to_smem(x_.at[pl.ds(row, tile_m), at], slots.a.at[slot], full)
                matrix = (mine, columns, at) if transpose else (mine, at, columns)
                plgpu.copy_gmem_to_smem(w_.at[matrix], slots.b.at[slot], full)

            return pipeline.load(slots, copy, trips, turn)

        def compute(index, turn):
            down, row, column, _, trips = tile(index)
            warpgroup = lax.axis_index("warpgroup")
            mine = pl.ds(warpgroup * half, half)

            def factors(_, slot):
                b = slots.b.at[slot]
                b = b.at[mine, :].transpose((1, 0)) if transpose else b.at[:, mine]
                return slots.a.at[slot], b

            sums, after = pipeline.multiply(slots, (tile_m, half), factors, trips, turn)

            def copy(chunk, outgoing, i, j):
                columns = y_.at[:, pl.ds(column + warpgroup * half + j, line)]
                begin = jnp.maximum(first[down] - row - i, 0)
                stop = jnp.minimum(end[down] - row - i, CHUNK)
                _store(chunk, columns, row + i, begin, stop, outgoing, part.at[warpgroup])

            pipeline.store(sums.astype(dtype), copy, whole.at[warpgroup])
            return after

        pipeline.in_roles(total[0] * across, load, compute, slots)

    scratch: Any = (
        pipeline.slot_types((tile_m, tile_k), block, x.dtype, stages),
        plgpu.SMEM((2, buffers, CHUNK, line), dtype),
        plgpu.SMEM((2, CHUNK, line), dtype),
    )
    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_types=scratch,
        **pipeline.launch(interpret),
    )
    return kernel(*schedule(group_sizes, m, tile_m), x, w)


def _store(chunk, columns, row, begin, end, whole, part) -> None:
    """Copy rows `begin` to `end` of a chunk: whole, or by powers of two, as sizes are fixed.

    A buffer that whole chunks are copied from has a layout in which single rows have no address.
    """

    @pl.when(end - begin == CHUNK)
    def _():
        whole[...] = chunk
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(whole, columns.at[pl.ds(row, CHUNK), :], commit_group=False)

    @pl.when((end > begin) & (end - begin < CHUNK))
    def _():
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        part[...] = chunk
        plgpu.commit_smem()
        for size in (32, 16, 8, 4, 2, 1):
            at = begin + ((end - begin) & jnp.int32(CHUNK - 2 * size))  # after the larger pieces

            @pl.when((end - begin) & size != 0)
            def _(at=at, size=size):
                plgpu.copy_smem_to_gmem(
                    part.at[pl.ds(at, size), :],
                    columns.at[pl.ds(row + at, size), :],
                    commit_group=False,
                )
