"""Quantise to blocks that share a scale."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, PRNGKeyArray, UInt8, UInt16, UInt32

from moe_ref._errors import require, require_choice
from moe_ref._typing import checked
from moe_ref.mx import _scaled, _triton
from moe_ref.mx._bits import INFINITY, MAGNITUDE, encode, float_bits
from moe_ref.mx._blocks import Axes, block_axes, counts, cut, joined
from moe_ref.mx._format import FORMATS, SCALED, formats, usual_block
from moe_ref.mx._quantized import Quantized
from moe_ref.mx._scale import rules, scale, usual_rule

POLICIES = ("poison", "te")
_INPUTS = ("bfloat16", "float16", "float32")


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
    rule: str | None = None,
    nonfinite: str = "poison",
    block: int | tuple[int, ...] | None = None,
    tail: str = "refuse",
    key: PRNGKeyArray | None = None,
) -> Quantized:
    r"""Write each block of values as one scale and one narrow code a value.

    In MX formats the scale is $2^{b-127}$ for a byte $b$:

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

    `nvfp4` has E2M1 elements, E4M3 scales $s$ and one float32 number $t$ for the tensor, whose
    largest magnitude is $A$: $x_i \approx t s p_i$. Below, every product and quotient is one of
    float32, rounded once, 1/6 too; c rounds to E4M3 as elements are, M is the largest float32:

    | rule | scales | $p_i$ rounds | followed by |
    |---|---|---|---|
    | `te` | $u = \min(2688 / A, M)$, $t = 1/u$, $s = c(a (u \cdot 1/6))$ | $x_i v$ | TE |
    | `te_unfolded` | $u$ and $t$ the same, $s = c((a / 6) u)$ | $x_i v$ | TE at first |
    | `torchao` | $t = A / 2688$, $s = c(\max((a / 6) / t, 2^{-6}))$ | $x_i / (t s)$ | torchao |

    with $v = \min(1 / (s t), M)$. `fp8_e4m3` and `fp8_e5m2` have float32 scales,
    $x_i \approx s p_i$:

    | rule | scale | $p_i$ rounds | followed by |
    |---|---|---|---|
    | `divide` | $s = a / p_{max}$ | $x_i / s$, or 0 if $x_i$ is | DeepSeek-V3 |
    | `deepseek_v3` | $s = a / p_{max}$ | $x_i / s$, so that 0/0 is NaN | its released kernel |
    | `deepgemm` | $s = \max(a, 10^{-4}) / p_{max}$ | $x_i (1 / s)$ | DeepGEMM's tests |
    | `te` | $u = \min(p_{max} / a, M)$, $s = 1 / u$ | $x_i u$ | TE with float32 scales |

    where $u$ is 1 if it would be 0, or divided by 0. DeepSeek-V3's blocks are 128 values of a row
    of activations, and 128 by 128 of weights: `axis=(-2, -1)`.

    All of it is integer arithmetic on bit patterns, so the bytes are the same eager and compiled,
    on every device. NVIDIA GPUs that convert FP8 convert blocks of 32 along one axis instead: the
    same bytes, compared for every pair of a bfloat16 magnitude of a block and a bfloat16 value.

    With a `key` elements are rounded at random, scales as ever: to one of the two numbers next to
    $p_i$, each as probable as the other one is far, so that the mean is $p_i$ where nothing
    saturates. 64 random bits a value are compared with the bits that are dropped: exact from
    $2^{-41}$ of the smallest number on, and rounded down to a multiple of $2^{-64}$ below.

    Args:
        x: any shape; float32, bfloat16 or float16.
        format: a name from `formats()`.
        axis: the axis blocks lie along, or several for blocks of more dimensions.
        rule: a name from `rules(format)`; if None "rceil", "te" or "divide".
        nonfinite: what NaN and Inf do. "poison": one of either in a block makes its scale 0xFF and
            its elements NaN (0 in a format without NaN). "te", as Transformer Engine: NaN does
            not count in $a$ and stays alone, Inf gives scale 0xFE and saturates. Where scales are
            numbers: "poison" gives a NaN for a scale, and such blocks do not count in $A$; under
            "te", Inf makes FP8's $s$, or $u$ and $t$ of a whole tensor, 1, and saturates.
        block: values that share a scale, along each axis; if None 32, 16 or 128.
        tail: of an axis that `block` does not divide: "refuse" raises, "pad" makes the last block
            as if zeros followed, in each row by itself.
        key: for rounding at random; the same key, the same bytes.

    Returns:
        Elements of the shape of `x`, and one scale for each block.

    Raises:
        ValueError: ranks, dtypes, names or lengths do not fit, also while tracing.

    Special cases:
        Zeros: scale 0x00 and codes that keep the sign of zero, where the format has one. Where
            scales are numbers, zeros give what the rule says: scale 0 under "te" and "divide"
            (1 under FP8's "te"), 2^-6 under "torchao", which divides a tensor of zeros into NaN.
        Scales that round to 0: numbers of the block saturate, and are read as 0.
        Scale 0x00: $2^{-127}$, itself a float32 subnormal; small blocks are quantised with it.
        "te" in a format without NaN: NaN becomes the largest number.
        `even` with a magnitude that rounds to Inf: a non-finite block under "poison"; under "te"
            the exponent is that of Inf.
        `mxint8`: multiples of 2^-6, two's complement; -2 is not used.
        Gradients: codes are integers and have none.

    Complexity:
        Some thirty integer operations a value, a hundred where scales are numbers; memory of the
        result. MXFP8 on such a GPU: one pass.

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
    require_choice(format, "format", formats())
    rule = usual_rule(format) if rule is None else rule
    require_choice(rule, "rule", rules(format))
    require_choice(nonfinite, "nonfinite", POLICIES)
    require_choice(tail, "tail", ("refuse", "pad"))
    require(str(x.dtype) in _INPUTS, "x.dtype", f"one of {', '.join(_INPUTS)}", x.dtype)
    block = usual_block(format) if block is None else block
    axes, lengths = block_axes(axis, block, x.shape)
    for a, length in zip(axes, lengths, strict=True):
        divides = tail == "pad" or x.shape[a] % length == 0
        wanted = f'a multiple of block={length}, or tail="pad" given'
        require(divides, f"x.shape[{a}]", wanted, x.shape[a])
    static = _Static(format, rule, nonfinite, axes, lengths)
    words = None if key is None else jax.random.bits(key, (2, *x.shape), jnp.uint32)
    if format in SCALED:
        elements, scales, tensor_scale = _run_scaled(static, x, words)
        return Quantized(elements, scales, format, axes, lengths, tensor_scale)
    elements, scales = _run(static, x, words)
    return Quantized(elements, scales, format, axes, lengths)


# Compiled by itself, so that eager calls find the same program.
@functools.partial(jax.jit, static_argnums=0)
def _run(
    static: _Static, x: Float[Array, "..."], words: UInt32[Array, "2 ..."] | None
) -> tuple[UInt8[Array, "..."], UInt8[Array, "..."]]:
    shape, axes, lengths = x.shape, static.axes, static.lengths

    def anywhere(x):
        pattern, inner = cut(float_bits(x), axes, lengths)
        write = functools.partial(_writer(static, words), pattern, form=FORMATS[static.format])
        elements, byte = _blocks(static, pattern, inner, write, _largest)
        scales = jnp.squeeze(byte.astype(jnp.uint8), inner)
        return joined(elements, shape, axes, lengths), scales

    if words is not None:
        return anywhere(x)
    tiles = _triton.tiles("quantize", shape, axes, lengths, static.format)
    if tiles is None:
        return anywhere(x)

    def on_a_gpu(x):
        blocks, alone = functools.partial(_blocks, static), static.nonfinite == "te"
        elements, scales = _triton.quantize(x, tiles, blocks, static.format, alone=alone)
        return elements.reshape(shape), scales.reshape(counts(shape, axes, lengths))

    return _triton.where_it_runs(on_a_gpu, anywhere, x)


@functools.partial(jax.jit, static_argnums=0)
def _run_scaled(
    static: _Static, x: Float[Array, "..."], words: UInt32[Array, "2 ..."] | None
) -> tuple[
    UInt8[Array, "..."], UInt8[Array, "..."] | Float32[Array, "..."], Float32[Array, ""] | None
]:
    pattern, inner = cut(float_bits(x), static.axes, static.lengths)
    options = (static.rule, static.nonfinite, _writer(static, words))
    if static.format == "nvfp4":
        result = _scaled.nvfp4(pattern, inner, *options)
    else:
        result = _scaled.fp8(pattern, inner, SCALED[static.format], *options)
    elements = joined(result.elements, x.shape, static.axes, static.lengths)
    scales = jnp.squeeze(result.scales, inner)
    if result.tensor_scale is None:
        return elements, lax.bitcast_convert_type(scales, jnp.float32), None
    return elements, scales, lax.bitcast_convert_type(result.tensor_scale, jnp.float32)


def _writer(
    static: _Static, words: UInt32[Array, "2 ..."] | None
) -> Callable[..., UInt8[Array, "..."]]:
    """`encode`, at random if there are random words, the upper half of each number first."""
    if words is None:
        return encode
    high, low = (cut(word, static.axes, static.lengths)[0] for word in words)
    return functools.partial(encode, random=(high, low))


def _blocks(
    static: _Static,
    pattern: UInt16[Array, "..."] | UInt32[Array, "..."],
    inner: Axes,
    write: Callable[..., UInt8[Array, "..."]],
    largest: Callable[..., UInt16[Array, "..."] | UInt32[Array, "..."]] = jnp.max,
) -> tuple[UInt8[Array, "..."], Int32[Array, "..."]]:
    """Codes, and a scale byte for each block.

    Args:
        static: what is known.
        pattern: of float32 numbers, or of bfloat16 ones.
        inner: the axes that the values of a block lie along.
        write: gives the codes for scale bytes, `byte`.
        largest: `jnp.max`.
    """
    form = FORMATS[static.format]
    missing = 32 - jnp.iinfo(pattern.dtype).bits
    magnitude = pattern & (MAGNITUDE >> missing)
    if static.nonfinite == "te":
        magnitude = jnp.where(magnitude > INFINITY >> missing, 0, magnitude)
    amax = largest(magnitude, axis=inner, keepdims=True, initial=0).astype(jnp.uint32) << missing
    byte, overflows = scale(jnp.minimum(amax, INFINITY - 1), static.rule, form)
    infinite = amax >= INFINITY
    if static.nonfinite == "te":
        byte = jnp.where(infinite, 254, byte)
        return write(byte=byte), byte
    poisoned = infinite | overflows
    byte = jnp.where(poisoned, 0xFF, byte)
    return jnp.where(poisoned, jnp.uint8(form.nan_code), write(byte=byte)), byte


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
