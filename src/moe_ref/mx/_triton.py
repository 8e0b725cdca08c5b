"""FP8 blocks of 32 on an NVIDIA GPU, as fast as its memory: one pass, and the chip's conversions.

A scale is a power of two, so dividing by it is exact, and the chip rounds once: to nearest, ties to
even, as `_bits.py` does in thirty integer operations. NaN, which chips write in their own ways, is
set by its pattern. `benchmarks/gpu_mx.py` compares every pair of a block's largest magnitude and a
value, both bfloat16, and every pair of a code and a scale, with the integers.

Pallas is imported when a kernel is first traced: it is slow to import.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, UInt8, UInt16, UInt32

from moe_ref._device import gpu_capability, on_gpu
from moe_ref._varying import vary_together
from moe_ref.mx._bits import NAN
from moe_ref.mx._format import FORMATS

BLOCK = 32
# Parameter of `pallas_call`, for tests on machines without a GPU.
INTERPRET = False

_DTYPES = {"mxfp8_e4m3": jnp.float8_e4m3fn, "mxfp8_e5m2": jnp.float8_e5m2}
# Blocks of a tile, and warps, for blocks along the last axis and for others: the fastest of 32 to
# 512 blocks and 1 to 8 warps on an H200.
_TUNED = {"quantize": ((32, 1), (256, 1)), "dequantize": ((64, 4), (256, 4))}


class Tiles(NamedTuple):
    """How values lie as a matrix, and the tiles it is cut into.

    Attributes:
        matrix: one block a row, or one a column of each `BLOCK` rows.
        tile: what one program handles.
        axis: of the blocks in it.
        scales: the matrix of scales: a column, or one row for each `BLOCK` rows.
        warps: of a program.
    """

    matrix: tuple[int, int]
    tile: tuple[int, int]
    axis: int
    scales: tuple[int, int]
    warps: int

    @property
    def scales_tile(self) -> tuple[int, int]:
        """The scales of a tile."""
        rows, columns = self.tile
        return (rows, 1) if self.axis else (1, columns)


def tiles(
    operation: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    lengths: tuple[int, ...],
    format: str,
) -> Tiles | None:
    """How the kernels here handle an array; None if they do not.

    Args:
        operation: `quantize` or `dequantize`.
        shape: of the values.
        axes: of the blocks, counted from the last.
        lengths: of a block along each.
        format: of the elements.
    """
    if format not in _DTYPES or lengths != (BLOCK,) or shape[axes[0]] % BLOCK or 0 in shape:
        return None
    after = len(shape) + axes[0] + 1
    outer, inner = math.prod(shape[:after]), math.prod(shape[after:])
    last = inner == 1
    many = outer // BLOCK if last else inner
    most, warps = _TUNED[operation][0 if last else 1]
    along = min(many & -many, most)  # a power of two that divides it: no tile is cut short
    if along < BLOCK:
        return None
    if last:
        return Tiles((many, BLOCK), (along, BLOCK), 1, (many, 1), warps)
    return Tiles((outer, inner), (BLOCK, along), 0, (outer // BLOCK, inner), warps)


def where_it_runs(here: Callable[..., Any], elsewhere: Callable[..., Any], *operands: Array) -> Any:
    """`here` on a GPU that converts FP8, `elsewhere` on everything else."""
    if INTERPRET:
        return here(*operands)
    capability = gpu_capability()
    if capability is None or capability < (8, 9) or not _importable():
        return elsewhere(*operands)
    return on_gpu(here, elsewhere, *operands)


@functools.cache
def _importable() -> bool:
    """Whether this JAX has the compiler of such kernels, which 0.12 says will leave it."""
    try:
        from jax.experimental.pallas import triton  # noqa: F401
    except ImportError:
        return False
    return True


def quantize(
    x: Float[Array, "..."],
    shapes: Tiles,
    blocks: Callable[..., tuple[Array, Array]],
    format: str,
    *,
    alone: bool,
) -> tuple[UInt8[Array, "rows columns"], UInt8[Array, "..."]]:
    """Codes and scales, as matrices.

    Args:
        x: values.
        shapes: of `tiles`.
        blocks: gives codes and scale bytes of `blocks(patterns, axes, write)`.
        format: of the elements.
        alone: NaN does not spoil its block.
    """

    def kernel(x_ref, elements_ref, scales_ref):
        x = x_ref[...]
        write = functools.partial(encode, x.astype(jnp.float32), format=format, alone=alone)
        elements, byte = blocks(_patterns(x), (shapes.axis,), write)
        elements_ref[...] = elements
        scales_ref[...] = byte.astype(jnp.uint8)

    results = [(shapes.matrix, jnp.uint8), (shapes.scales, jnp.uint8)]
    return _call(kernel, shapes, [x.reshape(shapes.matrix)], results)


def dequantize(
    elements: UInt8[Array, "..."],
    scales: UInt8[Array, "..."],
    shapes: Tiles,
    format: str,
    dtype: Any,
) -> Float[Array, "rows columns"]:
    """Values, as a matrix.

    Args:
        elements: codes.
        scales: one for each block.
        shapes: of `tiles`.
        format: of the elements.
        dtype: float32 or bfloat16.
    """

    def kernel(elements_ref, scales_ref, values_ref):
        values_ref[...] = _decode(elements_ref[...], scales_ref[...], format, dtype)

    operands = [elements.reshape(shapes.matrix), scales.reshape(shapes.scales)]
    return _call(kernel, shapes, operands, [(shapes.matrix, dtype)])[0]


def encode(
    value: Float32[Array, "rows columns"], byte: Int32[Array, "..."], format: str, *, alone: bool
) -> UInt8[Array, "rows columns"]:
    """Codes of value / 2^(byte - 127), as `_bits.encode` gives them.

    Args:
        value: to write.
        byte: scale; up to 253 for blocks that are not overwritten afterwards, unless `alone`.
        format: of the elements.
        alone: NaN does not spoil its block.
    """
    largest = float(jnp.finfo(_DTYPES[format]).max)
    if alone:
        half, rest = _powers(127 - byte)
        scaled = value * half * rest
    else:
        scaled = value * _power(127 - byte)
    code = jnp.clip(scaled, -largest, largest).astype(_DTYPES[format])
    code = lax.bitcast_convert_type(code, jnp.uint8)
    return jnp.where(jnp.isnan(value), jnp.uint8(FORMATS[format].nan_code), code) if alone else code


def _decode(elements: UInt8[Array, "..."], scales: UInt8[Array, "..."], format: str, dtype):
    form = FORMATS[format]
    bits = jnp.uint16 if dtype == jnp.bfloat16 else jnp.uint32
    width = jnp.iinfo(bits).bits
    byte = scales.astype(jnp.int32)
    poisoned = byte == 0xFF
    coded = lax.bitcast_convert_type(elements, _DTYPES[format]).astype(jnp.float32)
    half, rest = _powers(byte - 127)
    value = coded * jnp.where(poisoned, jnp.float32(jnp.nan), half) * rest
    pattern = lax.bitcast_convert_type(value.astype(dtype), bits)
    # NaN keeps the sign of its element, and has none if it is the block's.
    sign = elements & jnp.where(poisoned, jnp.uint8(0), jnp.uint8(form.sign))
    nan = bits(NAN >> 32 - width) | (sign.astype(bits) << (width - form.bits))
    return lax.bitcast_convert_type(jnp.where(jnp.isnan(value), nan, pattern), dtype)


def _powers(exponent: Int32[Array, "..."]) -> tuple[Float32[Array, "..."], Float32[Array, "..."]]:
    """Two normal numbers whose product is 2^exponent, for exponents in [-128, 128]."""
    half = exponent >> 1
    return _power(half), _power(exponent - half)


def _power(exponent: Int32[Array, "..."]) -> Float[Array, "..."]:
    """2^exponent for exponents in [-126, 127]."""
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def _patterns(x: Float[Array, "..."]) -> UInt16[Array, "..."] | UInt32[Array, "..."]:
    """The pattern of each value: of bfloat16 numbers, or of float32 ones."""
    if x.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(x, jnp.uint16)
    return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)


def _call(kernel, shapes: Tiles, operands: list[Array], results: list) -> Any:
    """The kernel on every tile of matrices, each of values or of scales.

    Inside `jax.shard_map` results vary over the mesh axes that any operand varies over.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def spec(matrix):
        tile = shapes.tile if matrix == shapes.matrix else shapes.scales_tile
        return pl.BlockSpec(tile, lambda i, j: (i, j))

    rows, columns = shapes.matrix
    operands = list(vary_together(*operands))
    varying = jax.typeof(operands[0]).mat
    call = pl.pallas_call(
        kernel,
        grid=(rows // shapes.tile[0], columns // shapes.tile[1]),
        in_specs=[spec(operand.shape) for operand in operands],
        out_specs=[spec(matrix) for matrix, _ in results],
        out_shape=[
            jax.ShapeDtypeStruct(matrix, dtype, manual_axis_type=varying)
            for matrix, dtype in results
        ],
        compiler_params=triton.CompilerParams(num_warps=shapes.warps, num_stages=1),
        interpret=INTERPRET,
    )
    return call(*operands)
