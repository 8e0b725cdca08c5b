"""Blocks whose scales are numbers: E4M3 ones under one of the whole tensor, or float32 ones.

Each operation of a rule is one of float32, rounded once, as `_float32.py` does it; magnitudes are
float32 patterns throughout.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, UInt8, UInt32

from moe_ref.mx._bits import INFINITY, MAGNITUDE, NAN, decode, encode
from moe_ref.mx._blocks import Axes
from moe_ref.mx._float32 import divide, multiply
from moe_ref.mx._format import E4M3, SCALED, Format

Write = Callable[..., UInt8[Array, "..."]]
_UNIT = 127  # the scale byte of 1


def _pattern(value: float) -> UInt32[Array, ""]:
    return jnp.uint32(struct.unpack("<I", struct.pack("<f", value))[0])


class Blocks(NamedTuple):
    """What blocks became.

    Attributes:
        elements: a code for each value.
        scales: of each block, the blocked axes of length 1: codes of E4M3 or float32 patterns.
        tensor_scale: a float32 pattern; None where there is none.
    """

    elements: UInt8[Array, "..."]
    scales: UInt8[Array, "..."] | UInt32[Array, "..."]
    tensor_scale: UInt32[Array, ""] | None


class _Largest(NamedTuple):
    """Magnitudes, the largest of each block, and where that is not finite."""

    each: UInt32[Array, "..."]
    block: UInt32[Array, "..."]
    infinite: Bool[Array, "..."]


def _largest(pattern: UInt32[Array, "..."], inner: Axes, nonfinite: str) -> _Largest:
    each = pattern & MAGNITUDE
    counted = jnp.where(each > INFINITY, jnp.uint32(0), each) if nonfinite == "te" else each
    block = jnp.max(counted, axis=inner, keepdims=True, initial=0)
    return _Largest(each, block, block >= INFINITY)


def _once(*found: Array) -> tuple[Array, ...]:
    """The same, where XLA would find what a block has in common again for each of its values."""
    return lax.optimization_barrier(found)


def nvfp4(
    pattern: UInt32[Array, "..."], inner: Axes, rule: str, nonfinite: str, write: Write
) -> Blocks:
    """E2M1 elements, E4M3 scales and the tensor's scale.

    Args:
        pattern: float32 ones.
        inner: where the values of a block lie.
        rule: one of `NVFP4_RULES`.
        nonfinite: policy.
        write: `encode`, to nearest or at random.
    """
    one, six, most = _pattern(1.0), _pattern(6.0), jnp.uint32(INFINITY - 1)
    each, block, infinite = _largest(pattern, inner, nonfinite)
    finite = jnp.where(infinite, jnp.uint32(0), block)
    whole = jnp.max(finite if nonfinite == "poison" else block, initial=0)
    if rule == "torchao":
        tensor = jnp.where(whole == INFINITY, one, divide(whole, _pattern(2688.0)))
        (tensor,) = _once(tensor)
        wanted = jnp.maximum(divide(divide(block, six), tensor), _pattern(2.0**-6))
    else:
        inverse = jnp.minimum(divide(_pattern(2688.0), whole), most)
        inverse = jnp.where((whole == 0) | (inverse == 0), one, inverse)
        sixth = multiply(inverse, _pattern(1 / 6))
        tensor, inverse, sixth = _once(divide(one, inverse), inverse, sixth)
        folded = rule == "te"
        wanted = multiply(block, sixth) if folded else multiply(divide(block, six), inverse)
    (scales,) = _once(encode(wanted, jnp.int32(_UNIT), E4M3))
    total = multiply(decode(scales, jnp.int32(_UNIT), E4M3), tensor)
    if rule == "torchao":
        (total,) = _once(total)
        value = divide(each, total)
    else:
        (factor,) = _once(jnp.minimum(divide(one, total), most))
        value = multiply(each, factor)
    if nonfinite == "poison":
        scales = jnp.where(infinite, jnp.uint8(E4M3.nan_code), scales)
    elements = write(_signed(value, pattern), jnp.int32(_UNIT), SCALED["nvfp4"])
    elements = jnp.where(scales == E4M3.nan_code, jnp.uint8(0), elements)
    return Blocks(elements, scales, tensor)


def fp8(
    pattern: UInt32[Array, "..."],
    inner: Axes,
    form: Format,
    rule: str,
    nonfinite: str,
    write: Write,
) -> Blocks:
    """FP8 elements and float32 scales.

    Args:
        pattern: float32 ones.
        inner: where the values of a block lie.
        form: of the elements.
        rule: one of `FP8_RULES`.
        nonfinite: policy.
        write: `encode`, to nearest or at random.
    """
    one = _pattern(1.0)
    top = decode(jnp.uint8(form.largest), jnp.int32(_UNIT), form)
    each, block, infinite = _largest(pattern, inner, nonfinite)
    if rule == "te":
        inverse = jnp.minimum(divide(top, block), jnp.uint32(INFINITY - 1))
        (inverse,) = _once(jnp.where(block == 0, one, inverse))
        value, scales = multiply(each, inverse), divide(one, inverse)
    elif rule == "deepgemm":
        scales = divide(jnp.maximum(block, _pattern(1e-4)), top)
        (factor,) = _once(divide(one, scales))
        value = multiply(each, factor)
    else:
        (scales,) = _once(divide(block, top))
        value = divide(each, scales)
        if rule == "divide":
            value = jnp.where(each == 0, jnp.uint32(0), value)
    # Magnitudes of a block with Inf stay what they are, under the scale 1 or NaN.
    scales = jnp.where(infinite, jnp.uint32(NAN) if nonfinite == "poison" else one, scales)
    value = jnp.where(infinite, each, value)
    elements = write(_signed(value, pattern), jnp.int32(_UNIT), form)
    if nonfinite == "poison":
        elements = jnp.where(infinite, jnp.uint8(form.nan_code), elements)
    return Blocks(elements, scales, None)


def values(
    codes: UInt8[Array, "..."],
    scales: UInt32[Array, "..."],
    tensor_scale: UInt32[Array, "..."] | None,
    form: Format,
    bits: int,
) -> UInt32[Array, "..."]:
    """Float32 patterns of code times scale times the tensor's scale, rounded once.

    Args:
        codes: of the elements.
        scales: float32 patterns; E4M3 numbers if there is a tensor's scale, so that the first
            product is exact.
        tensor_scale: float32 patterns, if any.
        form: of the elements.
        bits: of a result's significand, 24 or 8.
    """
    code = decode(codes, jnp.int32(_UNIT), form)
    sign = code ^ scales
    if tensor_scale is None:
        return _signed(multiply(code & MAGNITUDE, scales & MAGNITUDE, bits), sign)
    product = multiply(code & MAGNITUDE, scales & MAGNITUDE)
    return _signed(multiply(product, tensor_scale & MAGNITUDE, bits), sign ^ tensor_scale)


def _signed(magnitude: UInt32[Array, "..."], sign: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The magnitude with the sign of another pattern."""
    return magnitude | (sign & jnp.uint32(MAGNITUDE + 1))
