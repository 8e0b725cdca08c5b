"""Values of blocks that share a scale."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt8

from moe_ref._errors import require, require_choice
from moe_ref._typing import checked
from moe_ref.mx import _scaled, _triton
from moe_ref.mx._bits import NAN, decode, float_bits, narrow
from moe_ref.mx._blocks import Axes, block_axes, counts, cut, joined, spread
from moe_ref.mx._format import E4M3, FORMATS, SCALED, formats
from moe_ref.mx._quantized import Quantized

_OUTPUTS = ("bfloat16", "float32")


@checked
def dequantize(q: Quantized, dtype: Any = jnp.float32) -> Float[Array, "..."]:
    r"""The values $2^{b-127}\, p_i$, $t s p_i$ or $s p_i$ that codes and scales stand for.

    Args:
        q: what `quantize` gave, or codes and scales from elsewhere.
        dtype: float32, in which every value of an MX format is exact unless it overflows, or
            bfloat16. The exact product is rounded to it once, to nearest with ties to even.

    Returns:
        An array of the shape of `q.elements`.

    Raises:
        ValueError: another dtype, another format, or scales of a shape or dtype that do not fit.

    Special cases:
        Scale 0xFF, or NaN: the block is NaN, whatever its elements.
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
    require_choice(q.format, "q.format", formats())
    name = jnp.dtype(dtype).name
    require_choice(name, "dtype", _OUTPUTS)
    axes, lengths = block_axes(q.axis, q.block, q.elements.shape)
    wanted = counts(q.elements.shape, axes, lengths)
    require(q.scales.shape == wanted, "q.scales", f"of shape {wanted}", q.scales.shape)
    kind = "float32" if q.format.startswith("fp8") else "uint8"
    require(q.scales.dtype == kind, "q.scales.dtype", kind, q.scales.dtype)
    if q.format in FORMATS:
        return _values(q.format, axes, lengths, name, q.elements, q.scales)
    if q.format == "nvfp4":
        given = None if q.tensor_scale is None else q.tensor_scale.shape
        outer = q.elements.shape[: axes[0]]
        fits = given is not None and given == outer[: len(given)]
        require(fits, "q.tensor_scale", f"a number, or of leading axes of {outer}", given)
    return _values_scaled(q, axes, lengths, 8 if name == "bfloat16" else 24)


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


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _values_scaled(q: Quantized, axes: Axes, lengths: Axes, bits: int) -> Float[Array, "..."]:
    codes, inner = cut(q.elements, axes, lengths)
    tensor_scale = None
    if q.format == "nvfp4":
        scales = decode(q.scales, jnp.int32(127), E4M3)
        assert q.tensor_scale is not None
        tensor_scale = float_bits(q.tensor_scale)
        tensor_scale = jnp.expand_dims(tensor_scale, tuple(range(tensor_scale.ndim, codes.ndim)))
    else:
        scales = lax.bitcast_convert_type(q.scales, jnp.uint32)
    pattern = _scaled.values(codes, spread(scales, inner), tensor_scale, SCALED[q.format], bits)
    pattern = joined(pattern, q.elements.shape, axes, lengths)
    if bits == 8:
        return lax.bitcast_convert_type((pattern >> 16).astype(jnp.uint16), jnp.bfloat16)
    return lax.bitcast_convert_type(pattern, jnp.float32)
