"""The grouped matmul: one operation, one gradient, any implementation."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, Integer

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref._varying import vary_together
from moe_ref.grouped._groups import as_int32, check_group_sizes
from moe_ref.grouped._registry import KERNELS, resolve

_DTYPES = ("bfloat16", "float16", "float32", "float64")


class _Static(NamedTuple):
    """What is known while tracing, hashable."""

    kernel: str
    transpose: bool
    dtype: jnp.dtype
    precision: lax.Precision


@checked
def grouped_matmul(
    x: Float[Array, "rows k"],
    w: Float[Array, "experts k n"],
    group_sizes: Integer[Array, " experts"],
    *,
    implementation: str = "auto",
    out_dtype: Any = None,
    precision: str | lax.Precision = lax.Precision.HIGHEST,
) -> Float[Array, "rows n"]:
    r"""Multiply consecutive groups of rows, each by the matrix of its own expert.

    $$y_i = x_i\, w_{e(i)}, \qquad
      e(i) = \min\{e : i < \textstyle\sum_{f \le e} \mathrm{group\_sizes}_f\}$$

    and with the cotangent $\bar y$

    $$\bar x_i = \bar y_i\, w_{e(i)}^\top, \qquad
      \bar w_e = \sum_{i : e(i) = e} x_i^\top\, \bar y_i$$

    Sums are kept in float32 (float64 if an operand or the result is float64) and rounded once, to
    `out_dtype` here and to the dtype of each operand in its gradient.

    Args:
        x: rows sorted by expert; float64, float32, float16 or bfloat16.
        w: one matrix per expert, of the dtype of `x`.
        group_sizes: how many rows each expert has, of any integer dtype.
        implementation: a name from `implementations()`, or "auto" for the fastest one here.
        out_dtype: dtype of the result; `x.dtype` if None.
        precision: of the matrix units, for backends with a choice.

    Returns:
        One row for each row of `x`; rows that no group owns are 0.

    Raises:
        ValueError: ranks, sizes or dtypes do not fit, also while tracing; or sizes whose values
            are known are negative or sum to more than `rows`.

    Special cases:
        Tail: rows at or past `sum(group_sizes)` may hold anything, NaN included, in `x` and in the
        cotangent. They reach nothing, and their results and gradients are 0.
        Empty groups: the matrix is not used, whatever it holds; its gradient is exactly 0.
        NaN and Inf in a row, or in a matrix, reach exactly the results and gradients whose formula
        contains them.
        Impossible sizes in traced arrays: negative ones count as 0 and groups end at the last row.
        See `validate_group_sizes`.
        Transformations: `jit`, `vmap` (one element after the other) and reverse-mode gradients of
        any order; no forward mode.

    Complexity:
        "blocked": 2 k n operations for each row in a group, one read of the matrix of each
        non-empty group, and memory of one such matrix. "mosaic", on NVIDIA Hopper: the operations
        on the tensor cores, in tiles of 128 rows of one group, and no memory but copies of operands
        with rows that are not a multiple of 8, or columns that are not one of 64 from 128 on.
        Operands of more than 16 bits take "blocked", except a float32 cotangent beside bfloat16,
        which `precision` splits into one ("default"), two ("high") or three ("highest") bfloat16
        terms, each with a float32 result of its own if there are several. "loop" and, except on
        TPU, "xla": `experts` times the operations, and "xla" `experts` times the memory of `x`.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref.grouped import grouped_matmul

        x = jnp.ones((4, 2))
        w = jnp.arange(3.0)[:, None, None] * jnp.ones((3, 2, 1))
        y = grouped_matmul(x, w, jnp.array([1, 0, 2]))
        assert y[:, 0].tolist() == [0.0, 4.0, 4.0, 0.0]
        ```
    """
    rows = x.shape[0]
    require(str(x.dtype) in _DTYPES, "x.dtype", f"one of {', '.join(_DTYPES)}", x.dtype)
    require(x.dtype == w.dtype, "w.dtype", f"x.dtype={x.dtype}", w.dtype)
    require(rows < 2**31, "x.shape[0]", "below 2**31, the range of int32", rows)
    check_group_sizes(group_sizes, rows)
    static = _Static(
        kernel=resolve(implementation),
        transpose=False,
        dtype=_result_dtype(x.dtype if out_dtype is None else out_dtype),
        precision=_precision(precision),
    )
    sizes = as_int32(group_sizes, rows)
    return _rows(static, *vary_together(x, w, sizes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(
    static: _Static,
    x: Float[Array, "rows a"],
    w: Float[Array, "experts k n"],
    group_sizes: Int32[Array, " experts"],
) -> Float[Array, "rows b"]:
    return _run(static, "rows", x, w, group_sizes)


def _rows_fwd(static, x, w, group_sizes):
    return _rows(static, x, w, group_sizes), (x, w, group_sizes)


def _rows_bwd(static, residuals, cotangent):
    x, w, group_sizes = residuals
    cotangent = jnp.asarray(cotangent)
    for_x = static._replace(transpose=not static.transpose, dtype=x.dtype)
    left, right = (cotangent, x) if static.transpose else (x, cotangent)
    for_w = static._replace(transpose=False, dtype=w.dtype)
    return (
        _rows(for_x, cotangent, w, group_sizes),
        _weights(for_w, left, right, group_sizes),
        None,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weights(
    static: _Static,
    x: Float[Array, "rows k"],
    y: Float[Array, "rows n"],
    group_sizes: Int32[Array, " experts"],
) -> Float[Array, "experts k n"]:
    return _run(static, "weights", x, y, group_sizes)


def _weights_fwd(static, x, y, group_sizes):
    return _weights(static, x, y, group_sizes), (x, y, group_sizes)


def _weights_bwd(static, residuals, cotangent):
    x, y, group_sizes = residuals
    cotangent = jnp.asarray(cotangent)
    for_x = static._replace(transpose=True, dtype=x.dtype)
    for_y = static._replace(transpose=False, dtype=y.dtype)
    return (
        _rows(for_x, y, cotangent, group_sizes),
        _rows(for_y, x, cotangent, group_sizes),
        None,
    )


_rows.defvjp(_rows_fwd, _rows_bwd)
_weights.defvjp(_weights_fwd, _weights_bwd)


# Compiled by itself, so that eager calls with other group sizes find the same program.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(static: _Static, product: str, a: Array, b: Array, group_sizes: Array) -> Array:
    kernel = KERNELS[static.kernel]
    if product == "rows":
        function = functools.partial(kernel.rows, transpose=static.transpose)
    else:
        function = kernel.weights

    # A batched trip count would turn every loop into one over masked copies of its whole carry.
    @jax.custom_batching.sequential_vmap
    def one(a, b, group_sizes):
        return function(a, b, group_sizes, dtype=static.dtype, precision=static.precision)

    return one(a, b, group_sizes)


def _result_dtype(out_dtype: Any) -> jnp.dtype:
    try:
        dtype = jnp.dtype(out_dtype)
    except TypeError:
        dtype = jnp.dtype(bool)
    require(str(dtype) in _DTYPES, "out_dtype", f"one of {', '.join(_DTYPES)}", out_dtype)
    available = jax.dtypes.canonicalize_dtype(dtype) == dtype
    require(available, "out_dtype", "at most 32 bits wide unless jax_enable_x64 is set", dtype)
    return dtype


def _precision(precision: str | lax.Precision) -> lax.Precision:
    try:
        return lax.Precision(precision)
    except ValueError:
        require(False, "precision", "a jax.lax.Precision or its name", repr(precision))
        raise
