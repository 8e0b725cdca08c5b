"""Arrays cut into blocks along named axes."""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from moe_ref._errors import require

Axes = tuple[int, ...]


def block_axes(axis: int | Axes, block: int | Axes, shape: Axes) -> tuple[Axes, Axes]:
    """Axes, counted from the last, and block lengths; in order of the axes.

    Raises:
        ValueError: an axis that `shape` lacks or named twice, or a length below 1.
    """
    axes = (axis,) if isinstance(axis, int) else axis
    lengths = (block,) * len(axes) if isinstance(block, int) else block
    rank = len(shape)
    fits = all(-rank <= a < rank for a in axes) and len(axes) > 0
    require(fits, "axis", f"one or more axes of an array of rank {rank}", axis)
    counted = [a if a < 0 else a - rank for a in axes]
    require(len(set(counted)) == len(counted), "axis", "axes that differ", axis)
    require(len(lengths) == len(axes), "block", "one length, or one for each axis", block)
    require(all(length >= 1 for length in lengths), "block", "at least 1", block)
    pairs = sorted(zip(counted, lengths, strict=True))
    return tuple(a for a, _ in pairs), tuple(length for _, length in pairs)


def counts(shape: Axes, axes: Axes, lengths: Axes) -> Axes:
    """The shape with each blocked axis counted in blocks, a last short one included."""
    result = list(shape)
    for a, length in zip(axes, lengths, strict=True):
        result[a] = -(-shape[a] // length)
    return tuple(result)


def cut(x: Shaped[Array, "..."], axes: Axes, lengths: Axes) -> tuple[Shaped[Array, "..."], Axes]:
    """Split blocked axes into (blocks, length), zeros after the end; and where the lengths are."""
    missing = [(0, 0)] * x.ndim
    for a, length in zip(axes, lengths, strict=True):
        missing[a] = (0, -x.shape[a] % length)
    if any(after for _, after in missing):
        x = jnp.pad(x, missing)
    shape, inner = [], []
    wanted = dict(zip(axes, lengths, strict=True))
    for a in range(-x.ndim, 0):
        if a in wanted:
            inner.append(len(shape) + 1)
            shape += [x.shape[a] // wanted[a], wanted[a]]
        else:
            shape.append(x.shape[a])
    return x.reshape(shape), tuple(inner)


def spread(scales: Shaped[Array, "..."], inner: Axes) -> Shaped[Array, "..."]:
    """Scales with an axis of length 1 wherever `cut` put one of a block's length."""
    return jnp.expand_dims(scales, inner)


def joined(x: Shaped[Array, "..."], shape: Axes, axes: Axes, lengths: Axes) -> Shaped[Array, "..."]:
    """Undo `cut`, dropping what it added."""
    whole = list(shape)
    for a, length in zip(axes, lengths, strict=True):
        whole[a] = -(-shape[a] // length) * length
    return x.reshape(whole)[tuple(slice(size) for size in shape)]
