"""The same blocks in arrays of other shapes: kernels have other code for tiles, rows and tails."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from moe_ref._counted import counted
from moe_ref.conformance._case import Case
from moe_ref.conformance.suite._quantize_cases import block_case
from moe_ref.conformance.suite._quantize_data import BLOCK, as_dtype, signs

Inputs = Callable[..., Iterable[Case]]

# Shapes of the checks of shapes, so that nothing else is compiled; some once, as there.
_MATRICES = ((1, 4096), (31, 160), (33, 64), (300, 64), (5, 2080), (96, 96), (32, 32), (128, 128))
_AXES = ((3, 5, 64), (2, 2, 3, 96), (96,))
_ONCE = ((32, 32), (128, 128), (2, 2, 3, 96), (96,))
# As many blocks are given alone: what is not finite has either sign there, in each of three places.
_ALONE = 6


def in_matrices(*inputs: Inputs) -> Callable[..., Any]:
    """What other inputs hold: one block of it alone, and matrices of other shapes full of it."""

    def drawn(rng, dtype, budget) -> Iterator[Case]:
        for label, first, both in _blocks(inputs, rng, dtype, budget):
            for number in range(_ALONE):
                x = first[number : number + 1]
                yield block_case(f"{label}, one block", x, once=True)
            yield from _filled(label, both, _MATRICES)

    return drawn


def in_other_axes(*inputs: Inputs) -> Callable[..., Any]:
    """What other inputs hold, in arrays of 1, 3 and 4 axes."""

    def drawn(rng, dtype, budget) -> Iterator[Case]:
        for label, _, both in _blocks(inputs, rng, dtype, budget):
            yield from _filled(label, both, _AXES)

    return drawn


def _filled(label: str, blocks: np.ndarray, shapes: Iterable[tuple[int, ...]]) -> Iterator[Case]:
    for shape in shapes:
        x = np.resize(blocks, shape)
        yield block_case(f"{label}, {list(shape)}", x, once=shape in _ONCE)


def _blocks(inputs: Iterable[Inputs], *drawing: Any) -> Iterator[tuple[str, Any, Any]]:
    """Of each of `inputs` what it is about, its special blocks, and these mixed with the others."""
    for some in inputs:
        cases = list(some(*drawing))
        if cases:
            first, second = _parted(np.concatenate([case.arrays["x"] for case in cases]))
            yield cases[0].label, first, np.stack([first, second], axis=1)


def _parted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks [number, 32] of zeros or with what is not finite, and as many others."""
    blocks = x.reshape(-1, BLOCK)
    special = ~np.isfinite(blocks).all(axis=-1) | (blocks == 0).all(axis=-1)
    if special.all() or not special.any():
        half = len(blocks) // 2
        return blocks[:half], blocks[half : 2 * half]
    return blocks[special], np.resize(blocks[~special], (special.sum(), BLOCK))


def short_blocks(rng, dtype, budget) -> Iterator[Case]:
    """Rows whose last block is short and holds what a padding might hide, or change."""
    for length in (1, 31, 33, 100):
        for poison in (np.nan, np.inf, -np.inf):
            x = _below_zero(rng, length)
            # At the end, where a short block begins, and between; not in the rows between these.
            for row, place in zip((0, 2, 4), (-1, _last(length)[0], -2), strict=True):
                x[row, max(place, -length)] = poison
            label = f"{counted(length, 'column')}, {poison} in the last block"
            yield block_case(label, as_dtype(x, dtype))
    yield from _almost_zero(rng, dtype)


def short_zeros(rng, dtype, budget) -> Iterator[Case]:
    """Rows whose last block is short and zero."""
    for length in (1, 31, 33, 100):
        x = _below_zero(rng, length)
        x[::2, _last(length)] = 0
        label = f"{counted(length, 'column')}, the last block zero"
        yield block_case(label, as_dtype(x, dtype))


def _almost_zero(rng, dtype: str) -> Iterator[Case]:
    tiny = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}[dtype]
    small = 2.0**-20 if dtype == "float16" else 2.0**-130
    for length in (1, 31, 33, 100):
        last = _last(length)
        steps = np.arange(1, len(last) + 1)
        zeros = 0.0 * steps
        kinds = (-zeros, tiny * steps, signs(rng, steps.shape) * zeros, -small * steps, zeros)
        x = _below_zero(rng, length)
        for row, kind in enumerate(kinds):
            x[row, last] = kind
        label = f"{counted(length, 'column')}, the last block next to nothing"
        yield block_case(label, as_dtype(x, dtype))


def _last(length: int) -> np.ndarray:
    """Columns of the last block."""
    return np.arange((length - 1) // BLOCK * BLOCK, length)


def _below_zero(rng, length: int) -> np.ndarray:
    """Five rows of negative values, so that the zeros of a padding are above them."""
    return -rng.uniform(0.5, 1, (5, length))
