"""Products and quotients of float32 magnitudes, each rounded once, in integers.

What IEEE 754 says, subnormals included: XLA may flush those, fuse a product into a sum, or multiply
by a reciprocal instead of dividing.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32

from moe_ref.mx._bits import INFINITY, NAN, split


def multiply(
    a: UInt32[Array, "..."], b: UInt32[Array, "..."], bits: int = 24
) -> UInt32[Array, "..."]:
    """The float32 pattern of a b, to nearest, ties to even.

    Args:
        a: patterns without sign.
        b: patterns without sign, that broadcast with `a`.
        bits: of the significand, its leading one included: 24, or 8 for a bfloat16 number.

    Returns:
        Patterns; NaN for NaN and for 0 times Inf.
    """
    (exponent, left), (other, right) = split(a), split(b)
    # 48 bits in two words of 24, from halves of 12.
    middle = (left >> 12) * (right & 0xFFF) + (left & 0xFFF) * (right >> 12)
    low = (left & 0xFFF) * (right & 0xFFF) + ((middle & 0xFFF) << 12)
    high = (left >> 12) * (right >> 12) + (middle >> 12) + (low >> 24)
    lost = (low & 0x3FFFF) != 0
    significand = (high << 6) | ((low & 0xFFFFFF) >> 18) | lost.astype(jnp.uint32)
    pattern = _rounded(significand, exponent + other - 155, bits)
    zero, infinite = (a == 0) | (b == 0), (a == INFINITY) | (b == INFINITY)
    return _special(pattern, zero, infinite, (a > INFINITY) | (b > INFINITY))


def divide(a: UInt32[Array, "..."], b: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The float32 pattern of a / b, to nearest, ties to even.

    Args:
        a: patterns without sign.
        b: patterns without sign, that broadcast with `a`.

    Returns:
        Patterns; Inf for a number by 0; NaN for NaN, 0 / 0 and Inf / Inf.
    """
    (exponent, rest), (other, divisor) = split(a), split(b)
    divisor = jnp.maximum(divisor, 1)
    quotient = rest // divisor
    rest = rest - quotient * divisor
    for more in (8, 8, 8, 2):  # 26 bits after the point, as many at a time as 32 bits hold
        digit = (rest << more) // divisor
        rest = (rest << more) - digit * divisor
        quotient = (quotient << more) | digit
    significand = (quotient << 1) | (rest != 0).astype(jnp.uint32)
    pattern = _rounded(significand, exponent - other + 100, 24)
    zero, infinite = (a == 0) | (b == INFINITY), (a == INFINITY) | (b == 0)
    return _special(pattern, zero, infinite, (a > INFINITY) | (b > INFINITY))


def _special(
    pattern: UInt32[Array, "..."],
    zero: Bool[Array, "..."],
    infinite: Bool[Array, "..."],
    nan: Bool[Array, "..."],
) -> UInt32[Array, "..."]:
    """The result where an operand is 0, Inf or NaN; NaN where two of them disagree."""
    pattern = jnp.where(zero, jnp.uint32(0), pattern)
    pattern = jnp.where(infinite, jnp.uint32(INFINITY), pattern)
    return jnp.where(nan | (zero & infinite), jnp.uint32(NAN), pattern)


def _rounded(
    significand: UInt32[Array, "..."], exponent: Int32[Array, "..."], bits: int
) -> UInt32[Array, "..."]:
    """The pattern nearest to significand 2^(exponent - 127), ties to even; Inf above the largest.

    Args:
        significand: positive, below 2^31; if bits below the last one were lost, that one is 1, and
            there are two more bits than `bits` at least.
        exponent: of the last bit, biased by 127.
        bits: of the result's significand.
    """
    shift = lax.clz(significand).astype(jnp.int32) - 1
    significand = significand << jnp.clip(shift, 0, 31).astype(jnp.uint32)
    exponent = exponent - shift
    biased = jnp.maximum(exponent + 30, 1)  # subnormal numbers have the step of the smallest normal
    dropped = biased - (bits - 1) - exponent
    by = jnp.clip(dropped, 1, 31).astype(jnp.uint32)
    odd = (significand >> by) & 1
    kept = (significand + ((jnp.uint32(1) << (by - 1)) - 1) + odd) >> by
    kept = jnp.where(dropped > 31, jnp.uint32(0), kept)
    code = kept + (jnp.minimum(biased - 1, 255).astype(jnp.uint32) << (bits - 1))
    return jnp.minimum(code << (24 - bits), jnp.uint32(INFINITY))
