"""Quantise to MX blocks, and back."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, UInt8, UInt32

from moe_ref._errors import require, require_choice
from moe_ref._typing import checked
from moe_ref.mx import _triton
from moe_ref.mx._bits import INFINITY, MAGNITUDE, NAN, decode, encode, float_bits, narrow
from moe_ref.mx._blocks import Axes, block_axes, counts, cut, joined, spread
from moe_ref.mx._format import FORMATS
from moe_ref.mx._quantized import Quantized
from moe_ref.mx._scale import RULES, scale

POLICIES = ("poison", "te")
_INPUTS = ("bfloat16", "float16", "float32")
_OUTPUTS = ("bfloat16", "float32")


class _Static(NamedTuple):
    """What is known while tracing, hashable."""

    format: str
    rule: str
    nonfinite: str
    axes: Axes
    lengths: Axes


@checked
def quantize(
    x: Float[Array, "..."],
    format: str,
    *,
    axis: int | tuple[int, ...],
    rule: str = "rceil",
    nonfinite: str = "poison",
    block: int | tuple[int, ...] = 32,
    tail: str = "refuse",
) -> Quantized:
    r"""Write each block of values as one scale $2^{b-127}$ and one narrow code a value.

    $$x_i \approx 2^{b-127}\, p_i, \qquad
      p_i = \mathrm{round}\left(x_i / 2^{b-127}\right)$$

    to nearest, ties to even, saturating at the largest number of the format, $p_{max}$ with
    exponent $e_{max}$ and $m$ mantissa bits. With $a = \max_i |x_i|$ and $b$ clamped to [0, 254]:

    | rule | $b - 127$ | followed by |
    |---|---|---|
    | `floor` | $\lfloor\log_2 a\rfloor - e_{max}$ | OCP MX, torchao `to_mx`, microxcaling |
    | `rceil` | $\lceil\log_2 \mathrm{fl}(a / p_{max})\rceil$ | TE, JAX, torchao MoE |
    | `rceil_real` | $\lceil\log_2 (a / p_{max})\rceil$ | the formula without rounding |
    | `ceil` | $\lceil\log_2 a\rceil - e_{max}$ | torchao |
    | `even` | $\lfloor\log_2 \mathrm{rn}_m(a)\rfloor - e_{max}$ | torchao, AMD Quark |

    where TE is Transformer Engine, fl rounds to float32, subnormals included, and $\mathrm{rn}_m$
    to $m$ mantissa bits, ties up. `rceil` and `rceil_real` differ at one magnitude of each format
    but `mxint8`, 0x04600001 for E4M3.

    All of it is integer arithmetic on bit patterns, so the bytes are the same eager and compiled,
    on every device. NVIDIA GPUs that convert FP8 convert blocks of 32 along one axis instead: the
    same bytes, compared for every pair of a bfloat16 magnitude of a block and a bfloat16 value.

    Args:
        x: any shape; float32, bfloat16 or float16.
        format: a name from `formats()`.
        axis: the axis blocks lie along, or several for blocks of more dimensions.
        rule: a name from `rules()`.
        nonfinite: what NaN and Inf do. "poison": one of either in a block makes its scale 0xFF and
            its elements NaN (0 in a format without NaN). "te", as Transformer Engine: NaN does
            not count in $a$ and stays alone, Inf gives scale 0xFE and saturates.
        block: values that share a scale, along each axis.
        tail: of an axis that `block` does not divide: "refuse" raises, "pad" makes the last block
            as if zeros followed, in each row by itself.

    Returns:
        Elements of the shape of `x`, and one scale for each block.

    Raises:
        ValueError: ranks, dtypes, names or lengths do not fit, also while tracing.

    Special cases:
        Zeros: scale 0x00 and codes that keep the sign of zero, where the format has one.
        Scale 0x00: $2^{-127}$, itself a float32 subnormal; small blocks are quantised with it.
        "te" in a format without NaN: NaN becomes the largest number.
        `even` with a magnitude that rounds to Inf: a non-finite block under "poison"; under "te"
            the exponent is that of Inf.
        `mxint8`: multiples of 2^-6, two's complement; -2 is not used.
        Gradients: codes are integers and have none.

    Complexity:
        Some thirty integer operations a value; memory of the result. FP8 on such a GPU: one pass.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import mx

        x = jnp.zeros((1, 32)).at[0, :4].set(jnp.array([449.0, 1.0, 17.0, 19.0]))
        q = mx.quantize(x, "mxfp8_e4m3", axis=-1, rule="rceil")
        assert q.scales.tolist() == [[128]] and q.elements[0, :2].tolist() == [0x76, 0x30]
        assert q.dequantize()[0, :4].tolist() == [448.0, 1.0, 16.0, 20.0]
        ```
    """
    require_choice(format, "format", FORMATS)
    require_choice(rule, "rule", RULES)
    require_choice(nonfinite, "nonfinite", POLICIES)
    require_choice(tail, "tail", ("refuse", "pad"))
    require(str(x.dtype) in _INPUTS, "x.dtype", f"one of {', '.join(_INPUTS)}", x.dtype)
    axes, lengths = block_axes(axis, block, x.shape)
    for a, length in zip(axes, lengths, strict=True):
        divides = tail == "pad" or x.shape[a] % length == 0
        wanted = f'a multiple of block={length}, or tail="pad" given'
        require(divides, f"x.shape[{a}]", wanted, x.shape[a])
    elements, scales = _run(_Static(format, rule, nonfinite, axes, lengths), x)
    return Quantized(elements, scales, format, axes, lengths)


# Compiled by itself, so that eager calls find the same program.
@functools.partial(jax.jit, static_argnums=0)
def _run(
    static: _Static, x: Float[Array, "..."]
) -> tuple[UInt8[Array, "..."], UInt8[Array, "..."]]:
    shape, axes, lengths = x.shape, static.axes, static.lengths

    def anywhere(x):
        pattern, inner = cut(float_bits(x), axes, lengths)
        elements, byte = _blocks(static, pattern, inner, encode, _largest)
        scales = jnp.squeeze(byte.astype(jnp.uint8), inner)
        return joined(elements, shape, axes, lengths), scales

    tiles = _triton.tiles("quantize", shape, axes, lengths, static.format)
    if tiles is None:
        return anywhere(x)

    def on_a_gpu(x):
        blocks, alone = functools.partial(_blocks, static), static.nonfinite == "te"
        elements, scales = _triton.quantize(x, tiles, blocks, alone=alone)
        return elements.reshape(shape), scales.reshape(counts(shape, axes, lengths))

    return _triton.where_it_runs(on_a_gpu, anywhere, x)


def _blocks(
    static: _Static,
    pattern: UInt32[Array, "..."],
    inner: Axes,
    encode: Callable[..., UInt8[Array, "..."]],
    largest: Callable[..., UInt32[Array, "..."]] = jnp.max,
) -> tuple[UInt8[Array, "..."], Int32[Array, "..."]]:
    """Codes, and a scale byte for each block, whose values lie along `inner`."""
    form = FORMATS[static.format]
    magnitude = pattern & MAGNITUDE
    if static.nonfinite == "te":
        magnitude = jnp.where(magnitude > INFINITY, 0, magnitude)
    amax = largest(magnitude, axis=inner, keepdims=True, initial=0)
    byte, overflows = scale(jnp.minimum(amax, INFINITY - 1), static.rule, form)
    infinite = amax >= INFINITY
    if static.nonfinite == "te":
        byte = jnp.where(infinite, 254, byte)
        return encode(pattern, byte, form), byte
    poisoned = infinite | overflows
    byte = jnp.where(poisoned, 0xFF, byte)
    return jnp.where(poisoned, jnp.uint8(form.nan_code), encode(pattern, byte, form)), byte


def _largest(
    magnitude: UInt32[Array, "..."], *, axis: Axes, keepdims: bool, initial: int
) -> UInt32[Array, "..."]:
    """`jnp.max`; of blocks along the last axis in two steps.

    XLA on CPU uses vectors along an axis that stays, and takes the maximum over the last axis value
    by value. It would join the steps again without the barrier.
    """
    length, lanes = magnitude.shape[-1], 8
    if magnitude.ndim - 1 in axis and length % lanes == 0:
        steps = magnitude.reshape(*magnitude.shape[:-1], length // lanes, lanes)
        magnitude = lax.optimization_barrier(jnp.max(steps, axis=-2, initial=initial))
    return jnp.max(magnitude, axis=axis, keepdims=keepdims, initial=initial)


@checked
def dequantize(q: Quantized, dtype: Any = jnp.float32) -> Float[Array, "..."]:
    r"""The values $2^{b-127}\, p_i$ that codes and scales stand for.

    Args:
        q: what `quantize` gave, or codes and scales from elsewhere.
        dtype: float32, in which every value is exact unless it overflows, or bfloat16, to which
            it is rounded once, to nearest with ties to even.

    Returns:
        An array of the shape of `q.elements`.

    Raises:
        ValueError: another dtype, another format, or scales of a shape that does not fit.

    Special cases:
        Scale 0xFF: the block is NaN, whatever its elements.
        Subnormal results are exact, in float32: they are assembled from integers.
        Overflow: Inf; `rceil`, `ceil` and `even` reach it for magnitudes near the largest float32.
        Codes that mean NaN or Inf: give them.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import mx

        q = mx.quantize(jnp.full((32,), 1e-40), "mxfp4_e2m1", axis=0)
        assert q.scales.tolist() == [0]
        ```
    """
    require_choice(q.format, "q.format", FORMATS)
    name = jnp.dtype(dtype).name
    require_choice(name, "dtype", _OUTPUTS)
    axes, lengths = block_axes(q.axis, q.block, q.elements.shape)
    wanted = counts(q.elements.shape, axes, lengths)
    require(q.scales.shape == wanted, "q.scales", f"of shape {wanted}", q.scales.shape)
    return _values(q.format, axes, lengths, name, q.elements, q.scales)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _values(
    format: str,
    axes: Axes,
    lengths: Axes,
    dtype: str,
    elements: UInt8[Array, "..."],
    scales: UInt8[Array, "..."],
) -> Float[Array, "..."]:
    shape = elements.shape

    def anywhere(elements, scales):
        codes, inner = cut(elements, axes, lengths)
        byte = spread(scales, inner).astype(jnp.int32)
        pattern = decode(codes, byte, FORMATS[format])
        pattern = jnp.where(byte == 0xFF, jnp.uint32(NAN), pattern)
        pattern = joined(pattern, shape, axes, lengths)
        if dtype == "bfloat16":
            return lax.bitcast_convert_type(narrow(pattern).astype(jnp.uint16), jnp.bfloat16)
        return lax.bitcast_convert_type(pattern, jnp.float32)

    tiles = _triton.tiles("dequantize", shape, axes, lengths, format)
    if tiles is None:
        return anywhere(elements, scales)

    def on_a_gpu(elements, scales):
        return _triton.dequantize(elements, scales, tiles, format, jnp.dtype(dtype)).reshape(shape)

    return _triton.where_it_runs(on_a_gpu, anywhere, elements, scales)
