"""Numbers for the pictures of a report."""

import itertools
from collections.abc import Sequence

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs

# Upper ends of the decades of error over bound; the last holds everything above.
DECADES = tuple(10.0**power for power in range(-8, 9))
_ROWS, _COLUMNS = 24, 48


def decades(judgements: Sequence[Judgement]) -> tuple[int, ...]:
    """Elements by decade of error over bound, in all inputs; empty if there is no bound."""
    found = [j.ratios.reshape(-1) for j in judgements if j.ratios is not None]
    if not found:
        return ()
    ratios = np.nan_to_num(np.concatenate(found), nan=np.inf)
    place = np.minimum(np.searchsorted(DECADES, ratios), len(DECADES) - 1)
    return tuple(int(count) for count in np.bincount(place, minlength=len(DECADES)))


def coarsened(ratios: np.ndarray | None) -> tuple[tuple[float, ...], ...]:
    """At most 24 rows and 48 columns, each the worst of those it stands for."""
    if ratios is None or ratios.size == 0:
        return ()
    table = np.nan_to_num(ratios.reshape(len(ratios), -1), nan=np.inf)
    rows = _parts(table.shape[0], _ROWS)
    columns = _parts(table.shape[1], _COLUMNS)
    return tuple(tuple(_short(float(table[r][:, c].max())) for c in columns) for r in rows)


def _short(ratio: float) -> float:
    """Three digits, which never bring a ratio beyond 1 back to it."""
    short = float(f"{ratio:.3g}")
    return 1.01 if ratio > 1 == short else short


def _parts(count: int, most: int) -> list[slice]:
    ends = np.linspace(0, count, min(count, most) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]


def load(case: Case, outputs: Outputs | None) -> tuple[int, ...]:
    """Rows of each expert, as the input or the kernel says."""
    if case.has("group_sizes"):
        return tuple(int(size) for size in case.arrays["group_sizes"])
    ids = case.arrays.get("experts")
    if ids is None and outputs is not None:
        ids = outputs.get("experts")
    if ids is None:
        return ()
    counts = np.bincount(ids[ids >= 0].reshape(-1).astype(np.int64))
    return tuple(int(count) for count in counts)
