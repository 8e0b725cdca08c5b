"""Which dtype a step computes in. Nothing here knows what an expert is."""

import jax.numpy as jnp
from jax.typing import DTypeLike

from moe_ref._errors import require

_FLOATS = ("bfloat16", "float16", "float32", "float64")


def float_dtype(dtype: DTypeLike, argument: str = "dtype") -> jnp.dtype:
    """`dtype` as an object; ValueError unless it is one of the four kinds layers compute in."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    require(name in _FLOATS, argument, f"one of {', '.join(_FLOATS)}", name)
    return jnp.dtype(name)


def accumulator_dtype(dtype: DTypeLike) -> jnp.dtype:
    """The dtype that sums of `dtype` values are kept in: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32)


def stage_dtype(dtype: DTypeLike, named: DTypeLike | None) -> jnp.dtype:
    """The dtype a stage computes in: the one a spec names, except that float64 stays float64.

    A spec names the dtype a framework computes a stage in. A reference that silently rounded its
    float64 inputs to float32 would be no reference.

    Args:
        dtype: dtype of the incoming values.
        named: dtype named by the spec; None keeps `dtype`.

    Returns:
        `named`, or float64 if `dtype` is float64.
    """
    if named is None or jnp.dtype(dtype) == jnp.float64:
        return jnp.dtype(dtype)
    return jnp.dtype(named)


def wider(a: DTypeLike, b: DTypeLike) -> jnp.dtype:
    """The dtype of more bytes, `a` if both have as many."""
    return max((jnp.dtype(a), jnp.dtype(b)), key=lambda dtype: dtype.itemsize)
