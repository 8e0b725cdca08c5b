"""Make a failing input small."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from moe_ref.conformance._case import Case


def shrink(case: Case, fails: Callable[[Case], bool], *, seconds: float = 15.0) -> Case:
    """Greedily replace a failing input by a smaller one that fails too.

    Args:
        case: fails.
        fails: whether another input does.
        seconds: stop looking after this long.

    Returns:
        The smallest failing input found, `case` itself if nothing smaller fails.
    """
    deadline = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for smaller in _smaller(case):
            if time.monotonic() > deadline:
                break
            if fails(smaller):
                case, improved = smaller, True
                break
    return _simplify(case, fails, deadline)


def _smaller(case: Case) -> Iterator[Case]:
    if "group_sizes" in case.arrays:
        yield from _smaller_grouped(case)
    else:
        yield from _fewer_tokens(case)


def _smaller_grouped(case: Case) -> Iterator[Case]:
    x, w, sizes = (case.arrays[name] for name in ("x", "w", "group_sizes"))
    counts = sizes.astype(np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    for keep in _halves(len(counts)):
        if len(keep):
            rows = [r for e in keep for r in range(ends[e] - counts[e], ends[e])]
            rows += list(range(total, len(x)))
            yield _pick(case, rows=rows, w=w[keep], group_sizes=sizes[keep])
    if len(x) > total:
        yield _pick(case, rows=list(range(total + (len(x) - total) // 2)))
    for e in np.argsort(-counts):
        if counts[e] > 0:
            for keep in _halves(int(counts[e])):
                first = int(ends[e] - counts[e])
                kept = [first + i for i in keep]
                rows = [*range(first), *kept, *range(int(ends[e]), len(x))]
                fewer = sizes.copy()
                fewer[e] = len(keep)
                yield _pick(case, rows=rows, group_sizes=fewer)
    for axis, name in ((1, "k"), (2, "n")):
        for keep in _halves(w.shape[axis]):
            if len(keep):
                yield _pick(case, **{name: keep})


def _pick(case: Case, *, rows=None, w=None, group_sizes=None, k=None, n=None) -> Case:
    arrays = dict(case.arrays)
    for name in ("x", "cotangent"):
        if rows is not None and name in arrays:
            arrays[name] = arrays[name][rows]
    if w is not None:
        arrays["w"] = w
    if group_sizes is not None:
        arrays["group_sizes"] = group_sizes
    if k is not None:
        arrays |= {"x": arrays["x"][:, k], "w": arrays["w"][:, k]}
    if n is not None:
        arrays["w"] = arrays["w"][:, :, n]
        if "cotangent" in arrays:
            arrays["cotangent"] = arrays["cotangent"][:, n]
    return case.replace(**arrays)


def _fewer_tokens(case: Case) -> Iterator[Case]:
    name = "logits" if "logits" in case.arrays else "x"
    for keep in _halves(len(case.arrays[name])):
        per_token = [n for n in (name, "mask", "cotangent") if case.arrays.get(n) is not None]
        yield case.replace(**{n: case.arrays[n][keep] for n in per_token})


def _halves(count: int) -> Iterator[list[int]]:
    """Subsets to try: both halves, then all but one."""
    everything = list(range(count))
    if count >= 2:
        yield everything[: count // 2]
        yield everything[count // 2 :]
    if 1 <= count <= 12:
        for i in everything:
            yield everything[:i] + everything[i + 1 :]


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
        simple = case.replace(**rounded)
        if fails(simple):
            return simple
    return case
