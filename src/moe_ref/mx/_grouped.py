"""The grouped matmul on MX operands, and its gradient."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Integer

from moe_ref._errors import require, require_choice
from moe_ref._typing import checked
from moe_ref._varying import vary_together
from moe_ref.grouped import grouped_matmul, implementations
from moe_ref.grouped._groups import as_int32, check_group_sizes
from moe_ref.mx._format import FORMATS
from moe_ref.mx._layout import aligned_length, aligned_rows
from moe_ref.mx._quantize import POLICIES, quantize
from moe_ref.mx._scale import RULES

WGRAD = ("high_precision_source", "requantize", "high_precision_matmul")
_BLOCK = 32
_DTYPES = ("bfloat16", "float16", "float32")


class _Static(NamedTuple):
    """What is known while tracing, hashable."""

    format: str
    rule: str
    nonfinite: str
    wgrad: str
    implementation: str
    dtype: jnp.dtype


@checked
def grouped_matmul_mx(
    x: Float[Array, "rows k"],
    w: Float[Array, "experts k n"],
    group_sizes: Integer[Array, " experts"],
    *,
    format: str = "mxfp8_e4m3",
    rule: str = "rceil",
    nonfinite: str = "poison",
    wgrad: str = "high_precision_source",
    implementation: str = "auto",
    out_dtype: Any = None,
) -> Float[Array, "rows n"]:
    r"""Multiply groups of rows by their experts' matrices, every operand written in an MX format.

    With $Q_a$ for quantising in blocks of 32 along axis $a$ and back, $\bar y$ the cotangent,

    $$y = Q_k(x)\, Q_k(w), \qquad
      \bar x = Q_n(\bar y)\, Q_n(w)^\top, \qquad
      \bar w_e = Q_t(x)^\top\, Q_t(\bar y)$$

    where $t$ runs over the rows of expert $e$: blocks lie along the contraction in each of the
    three, start anew with each group, and a short last one is as if zeros followed. The gradient
    passes through $Q$ as if it were the identity.

    | `wgrad` | operands of $\bar w$ | as |
    |---|---|---|
    | `high_precision_source` | $Q_t(x)$, $Q_t(\bar y)$ | torchao, JAX, Transformer Engine |
    | `requantize` | $Q_t(Q_k(x))$, $Q_t(Q_n(\bar y))$ | TE from a row-wise wire format |
    | `high_precision_matmul` | $x$, $\bar y$ | torchao's `wgrad_with_hp` |

    Products of dequantised float32 operands are summed in float32, in the order of
    `implementation`, at full precision, and rounded once to the dtype of each result; matrix units
    sum in orders and widths of their own, so bytes agree for operands alone. For the bound see
    `moe_ref.oracle.grouped_matmul_mx`.

    Args:
        x: rows sorted by expert; float32, float16 or bfloat16.
        w: one matrix per expert, of the dtype of `x`.
        group_sizes: how many rows each expert has, of any integer dtype.
        format: of all operands; see `formats`.
        rule: scale rule; see `quantize`.
        nonfinite: policy for NaN and Inf; see `quantize`.
        wgrad: how the gradient of `w` gets its operands.
        implementation: of the matmul; a name from `moe_ref.grouped.implementations()` or "auto".
        out_dtype: dtype of the result; `x.dtype` if None.

    Returns:
        One row for each row of `x`; rows that no group owns are 0.

    Raises:
        ValueError: ranks, sizes, dtypes or names do not fit, also while tracing; sizes whose
            values are known are negative or sum to more than `rows`; or a gradient of the gradient
            is asked for, which rounding does not have.

    Special cases:
        Tail: rows past the last group may hold anything and reach nothing, value and gradient.
        Empty groups: the gradient of their matrix is exactly 0.
        Subnormal operands: exact in their bytes; the matmul may read them as zero.
        NaN under "poison": 32 values along the contraction, which the results that use one of them
            use anyway.

    Complexity:
        The matmul's in float32, and some thirty integer operations for each value of an operand.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import mx

        x, w = jnp.full((4, 32), 1.0625), jnp.ones((2, 32, 1))
        y = mx.grouped_matmul_mx(x, w, jnp.array([1, 2]))
        assert y[:, 0].tolist() == [32.0, 32.0, 32.0, 0.0]  # the nearest E4M3 number is 1
        ```
    """
    dtype = x.dtype if out_dtype is None else jnp.dtype(out_dtype)
    for name, given in (("x.dtype", x.dtype), ("out_dtype", dtype)):
        require(str(given) in _DTYPES, name, f"one of {', '.join(_DTYPES)}", given)
    require(w.dtype == x.dtype, "w.dtype", f"x.dtype={x.dtype}", w.dtype)
    require_choice(format, "format", FORMATS)
    require_choice(rule, "rule", RULES)
    require_choice(nonfinite, "nonfinite", POLICIES)
    require_choice(wgrad, "wgrad", WGRAD)
    require_choice(implementation, "implementation", ("auto", *implementations()))
    static = _Static(format, rule, nonfinite, wgrad, implementation, dtype)
    check_group_sizes(group_sizes, x.shape[0])
    sizes = as_int32(group_sizes, x.shape[0])
    return _matmul(static, *vary_together(x, w, sizes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul(
    static: _Static,
    x: Float[Array, "rows k"],
    w: Float[Array, "experts k n"],
    group_sizes: Int32[Array, " experts"],
) -> Float[Array, "rows n"]:
    return _product(
        static, static.dtype, _rounded(static, -1, x), _rounded(static, -2, w), group_sizes
    )


def _matmul_fwd(static, x, w, group_sizes):
    return _matmul(static, x, w, group_sizes), (x, w, group_sizes)


def _matmul_bwd(static, residuals, cotangent):
    x, w, group_sizes = residuals
    back = jnp.swapaxes(_rounded(static, -1, w), 1, 2)
    dx = _product(static, x.dtype, _rounded(static, -1, cotangent), back, group_sizes)
    return dx, _weights(static, x, cotangent, group_sizes, w.dtype), None


_matmul.defvjp(_matmul_fwd, _matmul_bwd)


def _product(static: _Static, dtype: Any, x: Array, w: Array, group_sizes: Array) -> Array:
    return grouped_matmul(x, w, group_sizes, implementation=static.implementation, out_dtype=dtype)


def _weights(static: _Static, x: Array, cotangent: Array, group_sizes: Array, dtype: Any) -> Array:
    """The gradient of the matrices, by that of the plain product."""
    operands = x, cotangent
    if static.wgrad == "requantize":
        operands = tuple(_rounded(static, -1, a) for a in operands)
    if static.wgrad != "high_precision_matmul":
        operands = tuple(_rounded_in_groups(static, a, group_sizes) for a in operands)
    left, right = (a.astype(jnp.float32) for a in operands)
    unused = jnp.zeros((group_sizes.shape[0], left.shape[1], right.shape[1]), jnp.float32)
    # Linear in the matrices: the ones it is taken at do not matter.
    _, pull = jax.vjp(
        lambda w: _product(static, jnp.float32, left, w, group_sizes),
        vary_together(unused, left)[0],
    )
    return pull(right)[0].astype(dtype)


def _rounded_in_groups(static: _Static, a: Array, group_sizes: Array) -> Array:
    """Quantise along the rows of each group and back; 0 in rows that no group owns."""
    rows, experts = a.shape[0], group_sizes.shape[0]
    if not experts:
        return jnp.zeros_like(a, jnp.float32)
    to = aligned_rows(group_sizes, rows=rows, alignment=_BLOCK)
    length = aligned_length(rows, experts=experts, alignment=_BLOCK)
    apart = jnp.zeros((length, a.shape[1]), a.dtype).at[to].set(a, mode="drop")
    return _rounded(static, 0, apart).at[to].get(mode="fill", fill_value=0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _rounded(static: _Static, axis: int, a: Array) -> Array:
    """Quantise along an axis and back, to float32."""
    q = quantize(
        a,
        static.format,
        axis=axis,
        rule=static.rule,
        nonfinite=static.nonfinite,
        block=_BLOCK,
        tail="pad",
    )
    return q.dequantize(jnp.float32)


@_rounded.defjvp
def _rounded_jvp(static, axis, primals, tangents):
    # Through the integers the derivative would silently be 0.
    raise ValueError("`grouped_matmul_mx` has no gradient of its gradient: rounding has none.")
