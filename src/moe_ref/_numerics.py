"""Which dtype a step computes in. Nothing here knows what an expert is."""

import jax.numpy as jnp
from jax.typing import DTypeLike


def accumulator_dtype(dtype: DTypeLike) -> jnp.dtype:
    """The dtype that sums of `dtype` values are kept in: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32)


def at_least(dtype: DTypeLike, minimum: DTypeLike | None) -> jnp.dtype:
    """Widen `dtype` to `minimum`, never narrowing.

    A spec names the dtype a framework computes a stage in. float64 data stay float64 there: a
    reference that silently rounded its float64 inputs to float32 would be no reference.

    Args:
        dtype: dtype of the incoming values.
        minimum: dtype named by the spec; None keeps `dtype`.

    Returns:
        `minimum`, or float64 if `dtype` is float64.
    """
    if minimum is None or jnp.dtype(dtype) == jnp.float64:
        return jnp.dtype(dtype)
    return jnp.dtype(minimum)
