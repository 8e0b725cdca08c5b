"""Matrix products of rows, some of which do not count."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from moe_ref._numerics import accumulator_dtype


def masked_matmul(
    x: Float[Array, "*experts rows k"],
    w: Float[Array, "*experts k n"],
    filled: Bool[Array, "*experts rows 1"],
) -> Float[Array, "*experts rows n"]:
    """Multiply, with rows that are not `filled` zero in value and gradient, whatever `w` holds.

    Both sides of the product are masked: the input so that a NaN in an unfilled row stays out of
    the weight gradient, the output so that a NaN in the weights stays out of unfilled rows. The
    operands are widened first, which is exact; some backends have no batched bfloat16 product
    with a float32 result.
    """
    wide = accumulator_dtype(x.dtype)
    x = jnp.where(filled, x, jnp.zeros_like(x)).astype(wide)
    y = jnp.matmul(x, w.astype(wide), precision=lax.Precision.HIGHEST)
    return jnp.where(filled, y, jnp.zeros_like(y))
