"""`jax.lax.ragged_dot`, native on TPU and dense elsewhere, with what it leaves open closed."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from moe_ref.grouped import _loop
from moe_ref.grouped._groups import owned
from moe_ref.grouped._kernel import Kernel, operands, sum_dtype

# XLA may compute the product of every row with every expert under a mask of zeros, and on the CPU
# it does: a single Inf or NaN, even in the matrix of an empty group, then reaches all rows. Finite
# operands are safe; others take the loop, which costs a dense product but only when it is needed.
# Tails are masked first, so that what they hold is no reason to take it.


def _rows(
    x: Float[Array, "rows a"],
    w: Float[Array, "experts k n"],
    group_sizes: Int32[Array, " experts"],
    *,
    transpose: bool,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "rows b"]:
    mask = owned(group_sizes, x.shape[0])
    x = jnp.where(mask, x, jnp.zeros_like(x))
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (2 if transpose else 1,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0],
    )
    ragged = functools.partial(_ragged, dimensions=dimensions, dtype=dtype, precision=precision)
    loop = functools.partial(
        _loop.KERNEL.rows, transpose=transpose, dtype=dtype, precision=precision
    )
    y = lax.cond(_finite(x) & _finite(w), ragged, loop, x, w, group_sizes)
    return jnp.where(mask, y, jnp.zeros_like(y))


def _weights(
    x: Float[Array, "rows k"],
    y: Float[Array, "rows n"],
    group_sizes: Int32[Array, " experts"],
    *,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "experts k n"]:
    mask = owned(group_sizes, x.shape[0])
    x = jnp.where(mask, x, jnp.zeros_like(x))
    y = jnp.where(mask, y, jnp.zeros_like(y))
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[],
    )
    ragged = functools.partial(_ragged, dimensions=dimensions, dtype=dtype, precision=precision)
    loop = functools.partial(_loop.KERNEL.weights, dtype=dtype, precision=precision)
    return lax.cond(_finite(x) & _finite(y), ragged, loop, x, y, group_sizes)


def _ragged(a, b, group_sizes, *, dimensions, dtype, precision) -> jax.Array:
    sums = sum_dtype(a.dtype, b.dtype, dtype)
    a, b = operands(a, b, sums)
    product = lax.ragged_dot_general(
        a, b, group_sizes, dimensions, precision=precision, preferred_element_type=sums
    )
    return product.astype(dtype)


def _finite(a: Float[Array, "..."]) -> Bool[Array, ""]:
    return jnp.all(jnp.isfinite(a))


KERNEL = Kernel(_rows, _weights)
