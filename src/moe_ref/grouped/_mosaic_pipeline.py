"""What the Hopper kernels share: three warpgroups, slots of shared memory between them, and stores.

The last warpgroup is the producer: it runs ahead through all tiles and fills slots through the
tensor memory accelerator. The others, the consumers, multiply, each its half of a tile, and store.
A full slot is announced by one barrier and a free one by another; `turn` counts the slots used so
far, over all tiles.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

PRODUCER = 2
ALIGNED = 8  # rows of a tile in shared memory, where a copy may begin
CHUNK = 64  # rows of a store
LINE = 128  # bytes of a row of a store
SHARED_MEMORY = 227 * 1024 - 2048  # of a block, less barriers and what the compiler adds


class Tiles(NamedTuple):
    """Shape of the work of one thread block.

    Attributes:
        tile_m: rows of a tile of the result.
        tile_n: columns of a tile.
        tile_k: terms of the sum in one slot.
        stages: slots of shared memory between producer and consumers.
        strip: columns of tiles that are visited before the next row of tiles.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    strip: int


class Slots(NamedTuple):
    """Shared memory between producer and consumers."""

    a: Any
    b: Any
    full: Any
    empty: Any

    @property
    def number(self) -> int:
        """How many slots there are."""
        return self.a.shape[0]

    def of(self, turn):
        """Slot of a turn."""
        return lax.rem(turn, jnp.int32(self.number))


def launch(interpret: Any) -> dict[str, Any]:
    """Arguments of a kernel: a block for each multiprocessor, three warpgroups each."""
    device = jax.devices()[0]
    return {
        "grid": (device.core_count if device.platform == "gpu" else 2,),
        "grid_names": ("block",),
        "num_threads": 3,
        "thread_name": "warpgroup",
        "compiler_params": plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup
        ),
        "interpret": interpret,
    }


def in_roles(work, load, compute, slots: Slots) -> None:
    """Visit tiles 0 to `work`; `load(tile, turn)` and `compute(tile, turn)` return a turn."""
    role = lax.axis_index("warpgroup")

    def all_tiles(visit):
        @plgpu.nd_loop((work,), collective_axes="block", init_carry=jnp.int32(0))
        def turns(info, carry):
            return visit(info.index[0], carry)

        return turns

    @pl.when(role == PRODUCER)
    def _():
        plgpu.set_max_registers(40, action="decrease")
        drain(slots, all_tiles(load))

    @pl.when(role != PRODUCER)
    def _():
        plgpu.set_max_registers(232, action="increase")
        all_tiles(compute)
        plgpu.wait_smem_to_gmem(0)


def slot_types(a: tuple[int, int], b: tuple[int, int], dtype, slots: int) -> Slots:
    """Types of `slots` slots for two blocks of these shapes."""
    return Slots(
        plgpu.SMEM((slots, *a), dtype),
        plgpu.SMEM((slots, *b), dtype),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
    )


def outgoing(tiles: Tiles, itemsize: int, out_itemsize: int, reserved: int) -> int:
    """How many stores of a warpgroup fit into what the slots and `reserved` stores leave.

    They divide the stores of a tile, so that every tile begins with the buffer used longest ago.
    """
    taken = tiles.stages * (tiles.tile_m + tiles.tile_n) * tiles.tile_k * itemsize
    pieces = tiles.tile_m * tiles.tile_n * out_itemsize // (2 * CHUNK * LINE)
    fitting = (SHARED_MEMORY - taken) // (2 * CHUNK * LINE) - reserved
    return max(number for number in range(1, fitting + 1) if pieces % number == 0)


def load(slots: Slots, copy, trips, turn):
    """Fill the slots of one tile, `copy(i, slot)` for each trip; the turn after it."""

    def step(i, turn):
        slot = slots.of(turn)

        @pl.when(turn >= slots.number)
        def _():
            plgpu.barrier_wait(slots.empty.at[slot])

        copy(i, slot)
        return turn + 1

    return lax.fori_loop(0, trips, step, turn)


def drain(slots: Slots, turn) -> None:
    """Wait until the last use of every slot is over."""
    for slot in range(slots.number):

        @pl.when(turn > slot)
        def _(slot=slot):
            plgpu.barrier_wait(slots.empty.at[slot])


def multiply(slots: Slots, shape: tuple[int, int], factors, trips, turn):
    """Sum `a @ b` with `a, b = factors(i, slot)` over the trips; the sums and the turn after."""

    def accumulate(sums):
        def release(turn):
            plgpu.barrier_arrive(slots.empty.at[slots.of(turn)])

        def step(i, turn):
            slot = slots.of(turn)
            plgpu.barrier_wait(slots.full.at[slot])
            plgpu.wgmma(sums, *factors(i, slot))
            plgpu.wgmma_wait(1)  # the product of the trip before is complete
            pl.when(i > 0)(lambda: release(turn - 1))
            return turn + 1

        after = lax.fori_loop(0, trips, step, turn)
        plgpu.wgmma_wait(0)
        pl.when(trips > 0)(lambda: release(after - 1))
        return sums[...], after

    return pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))


def store(values, copy, outgoing) -> None:
    """Store a tile in chunks of 64 rows and 128 bytes, `copy(chunk, row, column)` for each.

    The chunks go through `outgoing` buffers in turn, and a buffer is written again when the copy
    out of it is over.
    """
    buffers = outgoing.shape[0]
    columns = outgoing.shape[2]
    number = 0
    for row in range(0, values.shape[0], CHUNK):
        for column in range(0, values.shape[1], columns):
            plgpu.wait_smem_to_gmem(buffers - 1, wait_read_only=True)
            chunk = values[row : row + CHUNK, column : column + columns]
            copy(chunk, outgoing.at[number % buffers], row, column)
            # Also when nothing was copied, as the wait counts groups.
            plgpu.commit_smem_to_gmem_group()
            number += 1
