"""Memory that a program may leave unwritten."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from moe_ref._varying import vary_together


def unwritten(rows: int, columns: int, dtype: DTypeLike, like: jax.Array) -> jax.Array:
    """Rows whose values nobody may read; it varies over the mesh axes that `like` varies over.

    They are zeros: on a GPU, memory that is not set may hold a NaN of another program.
    """
    return vary_together(lax.full((rows, columns), 0, jnp.dtype(dtype)), like)[0]
