"""Arrays cut into blocks: the values of one along the last axis."""

import numpy as np

from moe_ref._errors import require

Axis = int | tuple[int, ...]


def _lengths(shape: tuple[int, ...], axis: Axis, block: Axis) -> list[int]:
    """The length of a block along each axis of an array; 1 where none was asked for."""
    axes = (axis,) if isinstance(axis, int) else axis
    blocks = (block,) * len(axes) if isinstance(block, int) else block
    result = [1] * len(shape)
    for a, length in zip(axes, blocks, strict=True):
        require(-len(shape) <= a < len(shape), "axis", "an axis of x", axis)
        result[a] = length
    return result


def counts(shape: tuple[int, ...], axis: Axis, block: Axis) -> tuple[int, ...]:
    """The shape of the scales."""
    return tuple(-(-n // b) for n, b in zip(shape, _lengths(shape, axis, block), strict=True))


def cut(x: np.ndarray, axis: Axis, block: Axis) -> np.ndarray:
    """[*counts, values of a block], zeros where the last block is short."""
    lengths, many = _lengths(x.shape, axis, block), counts(x.shape, axis, block)
    pairs = list(zip(many, lengths, strict=True))
    missing = [(0, n * b - size) for (n, b), size in zip(pairs, x.shape, strict=True)]
    split = np.pad(x, missing).reshape([size for pair in pairs for size in pair])
    order = [*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2)]
    return split.transpose(order).reshape(*many, int(np.prod(lengths)))


def joined(blocks: np.ndarray, shape: tuple[int, ...], axis: Axis, block: Axis) -> np.ndarray:
    """Undo `cut`."""
    lengths, many = _lengths(shape, axis, block), counts(shape, axis, block)
    rank = len(shape)
    apart = blocks.reshape(*many, *lengths)
    apart = apart.transpose(
        [a for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for a in pair]
    )
    whole = apart.reshape([n * b for n, b in zip(many, lengths, strict=True)])
    return whole[tuple(slice(size) for size in shape)]
