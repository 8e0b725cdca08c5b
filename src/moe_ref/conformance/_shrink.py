"""Make a failing input small."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from moe_ref.conformance._case import Case


def shrink(
    case: Case,
    fails: Callable[[Case], bool],
    smaller: Callable[[Case], Iterator[Case]],
    *,
    seconds: float | int = 15,
) -> Case:
    """Greedily replace a failing input by a smaller one that fails too.

    Args:
        case: fails.
        fails: whether another input does.
        smaller: inputs to try in place of one.
        seconds: stop looking after this long.

    Returns:
        The smallest failing input found, `case` itself if nothing smaller fails.
    """
    deadline = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for candidate in smaller(case):
            if time.monotonic() > deadline:
                break
            if fails(candidate):
                case, improved = candidate, True
                break
    return _simplify(case, fails, deadline)


def _simplify(case: Case, fails: Callable[[Case], bool], deadline: float) -> Case:
    """Prefer numbers a person can read: small integers, then two digits."""
    for digits in (0, 2):
        if time.monotonic() > deadline:
            break
        rounded = {
            name: np.round(array.astype(np.float64), digits).astype(array.dtype)
            for name, array in case.arrays.items()
            if isinstance(array, np.ndarray) and array.dtype.kind not in "iub"
        }
        if all(rounded[name].tobytes() == case.arrays[name].tobytes() for name in rounded):
            break  # they are such numbers already
        simple = case.replace(**rounded)
        if fails(simple):
            return simple
    return case
