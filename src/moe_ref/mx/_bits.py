"""Float patterns to codes and back, in integers alone.

XLA on CPU reads and writes float32 subnormals as zero, and scale byte 0 is one (2^-127). Nothing
here touches a float, so eager and compiled, CPU and GPU give the same bits.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, UInt, UInt8, UInt32

from moe_ref.mx._format import FLOAT16, Format

MAGNITUDE = 0x7FFFFFFF
INFINITY = 0x7F800000
NAN = 0x7FC00000
_IMPLICIT = 1 << 23


def float_bits(x: Float[Array, "..."]) -> UInt32[Array, "..."]:
    """The float32 pattern of each value; exact for float32, bfloat16 and float16."""
    if x.dtype == jnp.float32:
        return lax.bitcast_convert_type(x, jnp.uint32)
    patterns = lax.bitcast_convert_type(x, jnp.uint16)
    if x.dtype == jnp.bfloat16:
        return patterns.astype(jnp.uint32) << 16
    return decode(patterns, jnp.int32(127), FLOAT16)


def split(magnitude: UInt32[Array, "..."]) -> tuple[Int32[Array, "..."], UInt32[Array, "..."]]:
    """Exponent, biased by 127, and significand of 24 bits, the first of them 1 except in zero."""
    exponent = (magnitude >> 23).astype(jnp.int32)
    fraction = magnitude & (_IMPLICIT - 1)
    subnormal = exponent == 0
    shift = jnp.where(subnormal, lax.clz(fraction) - 8, 0)
    significand = jnp.where(subnormal, fraction << shift, fraction | _IMPLICIT)
    return jnp.where(subnormal, 1 - shift.astype(jnp.int32), exponent), significand


def encode(
    pattern: UInt32[Array, "..."],
    byte: Int32[Array, "..."],
    form: Format,
    random: tuple[UInt32[Array, "..."], UInt32[Array, "..."]] | None = None,
) -> UInt8[Array, "..."]:
    """Codes of value / 2^(byte - 127): nearest, ties to even, saturating.

    Args:
        pattern: of float32 numbers; Inf saturates.
        byte: scale in [0, 254], of the same rank or of none.
        form: what to write.
        random: 64 random bits a value, the upper 32 first: to one of the two neighbours instead of
            the nearest, to the larger magnitude where those bits are below what is dropped.

    Returns:
        One code for each value. A NaN becomes the format's; the largest number if it has none,
        which is what `cvt.satfinite` gives.
    """
    magnitude = pattern & MAGNITUDE
    biased, significand = split(magnitude)
    exponent = biased - byte
    dropped = 23 - form.mantissa + jnp.maximum(form.emin - exponent, 0)
    # A significand shifted by 25 is below one half.
    by = jnp.clip(dropped, 0, 25).astype(jnp.uint32)
    if random is None:
        odd = (significand >> by) & 1
        kept = (significand + ((jnp.uint32(1) << (by - 1)) - 1) + odd) >> by
    else:
        kept = (significand >> by) + _goes_up(significand, dropped, *random)
    code = kept.astype(jnp.int32) + (jnp.maximum(exponent - form.emin, 0) << form.mantissa)
    code = jnp.where(magnitude == INFINITY, form.largest, jnp.minimum(code, form.largest))
    negative = pattern > MAGNITUDE
    if form.complement:
        code = jnp.where(negative, -code, code) & (2 * form.sign - 1)
    else:
        code = jnp.where(negative, code | form.sign, code)
    instead = form.largest if form.nan is None else form.nan_code
    return jnp.where(magnitude > INFINITY, instead, code).astype(jnp.uint8)


def _goes_up(
    significand: UInt32[Array, "..."],
    dropped: Int32[Array, "..."],
    high: UInt32[Array, "..."],
    low: UInt32[Array, "..."],
) -> UInt32[Array, "..."]:
    """1 with the probability that the dropped bits are of a step, else 0.

    As many random bits as are dropped, from 1 to 64, are compared with them. Below that, what a
    number of 64 bits has no room for is cut off the significand.
    """
    beyond = jnp.clip(dropped - 64, 0, 31).astype(jnp.uint32)
    count = jnp.minimum(dropped, 64)
    whole = jnp.clip(count, 0, 31).astype(jnp.uint32)
    fraction = (significand & ((jnp.uint32(1) << whole) - 1)) >> beyond
    # The first `count` random bits, as a number of two words.
    few = high >> jnp.clip(32 - count, 0, 31).astype(jnp.uint32)
    more = jnp.clip(count - 32, 1, 32).astype(jnp.uint32)
    upper = high >> (32 - more)
    lower = ((high << (more - 1)) << 1) | (low >> (32 - more))
    below = jnp.where(count > 32, (upper == 0) & (lower < fraction), few < fraction)
    return below.astype(jnp.uint32)


def decode(
    code: UInt[Array, "..."], byte: Int32[Array, "..."], form: Format
) -> UInt32[Array, "..."]:
    """Float32 patterns of code value times 2^(byte - 127); exact, Inf where that overflows.

    Args:
        code: of the format; bits above its own do not count.
        byte: scale in [0, 254], of the same rank or of none.
        form: what was written.
    """
    code = code.astype(jnp.uint32) & (2 * form.sign - 1)
    negative = (code & form.sign) != 0
    magnitude = code & (form.sign - 1)
    if form.complement:
        magnitude = jnp.where(negative, 2 * form.sign - code, code)
    field = (magnitude >> form.mantissa).astype(jnp.int32)
    fraction = magnitude & ((1 << form.mantissa) - 1)
    significand = jnp.where(field == 0, fraction, fraction | (1 << form.mantissa))
    # value = significand 2^(exponent - 127), the exponent that of its last bit
    exponent = jnp.maximum(field, 1) - form.bias - form.mantissa + byte
    pattern = _assemble(significand, exponent)
    if form.infinity is not None:
        pattern = jnp.where(magnitude == form.infinity, jnp.uint32(INFINITY), pattern)
    if form.nan is not None:
        pattern = jnp.where(magnitude >= form.nan, jnp.uint32(NAN), pattern)
    return jnp.where(negative, pattern | jnp.uint32(MAGNITUDE + 1), pattern)


def _assemble(
    significand: UInt32[Array, "..."], exponent: Int32[Array, "..."]
) -> UInt32[Array, "..."]:
    """Pattern of significand 2^(exponent - 127), whose last bit is at least 2^-149."""
    shift = lax.clz(significand).astype(jnp.int32) - 8  # to 24 bits
    biased = exponent + 23 - shift
    normal = significand << jnp.clip(shift, 0, 23).astype(jnp.uint32)
    normal = (normal & (_IMPLICIT - 1)) | (jnp.maximum(biased, 0).astype(jnp.uint32) << 23)
    subnormal = significand << jnp.clip(exponent + 22, 0, 31).astype(jnp.uint32)
    pattern = jnp.where(biased > 0, normal, subnormal)
    pattern = jnp.where(biased > 254, jnp.uint32(INFINITY), pattern)
    return jnp.where(significand == 0, jnp.uint32(0), pattern)


def narrow(pattern: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Float32 patterns to bfloat16 ones: nearest, ties to even, subnormals kept."""
    rounded = (pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16
    nan = (pattern & MAGNITUDE) > INFINITY
    return jnp.where(nan, (pattern >> 16) | 0x40, rounded)
