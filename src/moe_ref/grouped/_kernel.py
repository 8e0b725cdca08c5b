"""What an implementation of the grouped matmul provides, and the dot product they share."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from moe_ref._numerics import accumulator_dtype


class Kernel(NamedTuple):
    r"""The two products that a grouped matmul and all its derivatives are made of.

    With $e(i)$ the group of row $i$:

    $$\mathrm{rows}(x, w)_i = x_i\, w_{e(i)} \qquad
      \mathrm{weights}(x, y)_e = \sum_{i : e(i) = e} x_i^\top y_i$$

    Both take `group_sizes` as int32 in [0, rows] and keyword arguments `dtype` (of the result) and
    `precision`; `rows` takes `transpose` as well, to multiply by $w_e^\top$ without forming it.
    Operands may differ in dtype. Sums are kept in `accumulator_dtype` and rounded once.

    A kernel lets nothing but the rows of a group and the matrix of that group reach a result: rows
    at or past `sum(group_sizes)` may hold anything and come out zero, an empty group's matrix is
    never used and its weight result is zero, and NaN and Inf spread no further than they must.
    Kernels need no batching or differentiation rule.

    Args:
        rows: `[rows, k], [experts, k, n] -> [rows, n]`, or with `transpose`
            `[rows, n], [experts, k, n] -> [rows, k]`.
        weights: `[rows, k], [rows, n] -> [experts, k, n]`.
    """

    rows: Callable[..., jax.Array]
    weights: Callable[..., jax.Array]


def sum_dtype(*dtypes: jnp.dtype) -> jnp.dtype:
    """The dtype sums are kept in: float64 if any of `dtypes` is, else float32."""
    sums = {accumulator_dtype(dtype) for dtype in dtypes}
    return max(sums, key=lambda dtype: dtype.itemsize)


def operands(a: jax.Array, b: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Bring two factors to one dtype, exactly.

    Equal narrow dtypes are kept for the matrix units that multiply them, except on the CPU, where
    XLA has no such product for every shape and would widen them itself.
    """
    if a.dtype == b.dtype and jax.default_backend() != "cpu":
        return a, b
    return a.astype(dtype), b.astype(dtype)


def dot(a, b, contract: tuple[int, int], dtype: jnp.dtype, precision: lax.Precision) -> jax.Array:
    """Contract axis `contract[0]` of the matrix `a` with axis `contract[1]` of the matrix `b`."""
    a, b = operands(a, b, dtype)
    dimensions = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=dtype)
