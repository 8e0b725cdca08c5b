"""The readable implementation: every expert multiplies every row, and keeps its own."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from moe_ref.grouped._groups import owners
from moe_ref.grouped._kernel import Kernel, dot, sum_dtype


def _rows(
    x: Float[Array, "rows a"],
    w: Float[Array, "experts k n"],
    group_sizes: Int32[Array, " experts"],
    *,
    transpose: bool,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "rows b"]:
    owner = owners(group_sizes, x.shape[0])[:, None]
    sums = sum_dtype(x.dtype, w.dtype, dtype)

    def expert(e, y):
        product = dot(x, w[e], (1, 1 if transpose else 0), sums, precision)
        return jnp.where(owner == e, product, y)

    shape = (x.shape[0], w.shape[1 if transpose else 2])
    return lax.fori_loop(0, w.shape[0], expert, lax.full_like(x, 0, sums, shape)).astype(dtype)


def _weights(
    x: Float[Array, "rows k"],
    y: Float[Array, "rows n"],
    group_sizes: Int32[Array, " experts"],
    *,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "experts k n"]:
    owner = owners(group_sizes, x.shape[0])[:, None]
    sums = sum_dtype(x.dtype, y.dtype, dtype)

    def expert(e: Int32[Array, ""]) -> jax.Array:
        # Both factors are masked: 0 * NaN is NaN.
        mine_x = jnp.where(owner == e, x, jnp.zeros_like(x))
        mine_y = jnp.where(owner == e, y, jnp.zeros_like(y))
        return dot(mine_x, mine_y, (0, 0), sums, precision).astype(dtype)

    return lax.map(expert, jnp.arange(group_sizes.shape[0], dtype=jnp.int32))


KERNEL = Kernel(_rows, _weights)
