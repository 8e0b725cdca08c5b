"""Transposed rows times rows, summed over each group, on Hopper."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from moe_ref.grouped import _mosaic_pipeline as pipeline
from moe_ref.grouped._groups import offsets
from moe_ref.grouped._mosaic_pipeline import ALIGNED, CHUNK, LINE, Tiles


def weights(
    x: Float[Array, "rows k"],
    y: Float[Array, "rows n"],
    group_sizes: Int32[Array, " groups"],
    *,
    dtype: jnp.dtype,
    tiles: Tiles,
    interpret: Any = None,
) -> Float[Array, "groups k n"]:
    """`Kernel.weights` for operands of one narrow dtype with aligned sizes."""
    m, k = x.shape
    groups, n = group_sizes.shape[0], y.shape[1]
    tile_m, tile_n, tile_k, stages, strip = tiles
    half = tile_m // 2
    line = LINE // jnp.dtype(dtype).itemsize
    grid = pl.cdiv(k, tile_m), pl.cdiv(n, tile_n)
    buffers = pipeline.outgoing(tiles, x.dtype.itemsize, jnp.dtype(dtype).itemsize, reserved=0)

    def body(order, starts, ends, x_, y_, w_, slots, out):
        def tile(index):
            of_group = jnp.int32(grid[0] * grid[1])
            nth, within = lax.div(index, of_group), lax.rem(index, of_group)
            down, column = plgpu.planar_snake(within, grid, 1, strip)
            mine = order[nth]
            first, end = starts[mine], ends[mine]
            row = pl.multiple_of(lax.div(first, jnp.int32(ALIGNED)) * ALIGNED, ALIGNED)
            trips = lax.div(end - row + tile_k - 1, jnp.int32(tile_k))
            return mine, first, end, row, down * tile_m, column * tile_n, trips

        def load(index, turn):
            _, _, _, row, down, column, trips = tile(index)

            def copy(i, slot):
                at, full = pl.ds(row + i * tile_k, tile_k), slots.full.at[slot]
                plgpu.copy_gmem_to_smem(x_.at[at, pl.ds(down, tile_m)], slots.a.at[slot], full)
                plgpu.copy_gmem_to_smem(y_.at[at, pl.ds(column, tile_n)], slots.b.at[slot], full)

            return pipeline.load(slots, copy, trips, turn)

        def compute(index, turn):
            mine, first, end, row, down, column, trips = tile(index)
            warpgroup = lax.axis_index("warpgroup")
            my_rows = pl.ds(warpgroup * half, half)

            def factors(i, slot):
                a, b = slots.a.at[slot, :, my_rows], slots.b.at[slot]
                at = row + i * tile_k

                # Both, because 0 * NaN is NaN. The warpgroups write the same to `b`.
                @pl.when((at < first) | (at + tile_k > end))
                def _():
                    _keep(a, first - at, end - at)
                    _keep(b, first - at, end - at)
                    plgpu.commit_smem()

                return a.transpose((1, 0)), b

            sums, after = pipeline.multiply(slots, (half, tile_n), factors, trips, turn)

            def copy(chunk, outgoing, i, j):
                outgoing[...] = chunk
                plgpu.commit_smem()
                there = pl.ds(down + warpgroup * half + i, CHUNK), pl.ds(column + j, line)
                plgpu.copy_smem_to_gmem(outgoing, w_.at[(mine, *there)], commit_group=False)

            pipeline.store(sums.astype(dtype), copy, out.at[warpgroup])
            return after

        pipeline.in_roles(groups * grid[0] * grid[1], load, compute, slots)

    scratch: Any = (
        pipeline.slot_types((tile_k, tile_m), (tile_k, tile_n), x.dtype, stages),
        plgpu.SMEM((2, buffers, CHUNK, line), dtype),
    )
    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((groups, k, n), dtype),
        scratch_types=scratch,
        **pipeline.launch(interpret),
    )
    return kernel(*_largest_first(group_sizes, m), x, y)


def _largest_first(
    group_sizes: Int32[Array, " groups"], rows: int
) -> tuple[Int32[Array, " groups"], Int32[Array, " groups"], Int32[Array, " groups"]]:
    """Order of the groups, first rows and ends: small groups fill what is left at the end."""
    starts, ends = offsets(group_sizes, rows)
    return jnp.argsort(starts - ends).astype(jnp.int32), starts, ends


def _keep(block, begin, end) -> None:
    """Make the rows of a block in shared memory that are not `begin` to `end` zero."""
    values = block[...]
    row = lax.broadcasted_iota(jnp.int32, values.shape, 0)
    row = plgpu.layout_cast(row, plgpu.Layout.WGMMA)
    block[...] = jnp.where((row >= begin) & (row < end), values, jnp.zeros_like(values))
