"""Arrays inside `jax.shard_map`: over which mesh axes they vary."""

import jax
from jax import lax


def vary_together(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Mark all as varying over the mesh axes that any varies over; outside, nothing happens.

    The carry of a loop must vary over the same axes from the first trip on.
    """
    axes = frozenset().union(*(jax.typeof(a).mat.varying for a in arrays))
    return tuple(
        lax.pcast(a, missing, to="varying")
        if (missing := tuple(axes - jax.typeof(a).mat.varying))
        else a
        for a in arrays
    )


def over_axes(array: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The sum over mesh axes; the array itself for none."""
    return lax.psum(array, axes) if axes else array
