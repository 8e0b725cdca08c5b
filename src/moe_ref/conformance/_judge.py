"""Compare an array with a value and its bounds, and say where it is worst."""

from collections.abc import Callable

import numpy as np

from moe_ref import oracle
from moe_ref._counted import counted
from moe_ref.conformance._result import Judgement

Where = Callable[[tuple[int, ...]], str]
_PROVEN = "proven"
_LIKELY = "near certain: beyond the probable error, not the worst case"


def within(
    actual: np.ndarray,
    truth: oracle.Value,
    *,
    where: Where,
    rows: np.ndarray | None = None,
    whole: bool = False,
) -> Judgement:
    """Judge `|actual - truth| <= bound`, element by element.

    Args:
        actual: what the kernel computed.
        truth: what the oracle computed, with both its bounds.
        where: names an element for a reader.
        rows: which rows of the first axis to look at; None: all.
        whole: what must be heard is the array, not every row of it: parts of a router's gradient
            vanish by right.

    Returns:
        `fail` beyond the bound, `proven` beyond the worst case; `cannot tell` where everything in
        a row is below its bound.
    """
    value, bound = truth.value, truth.bound
    if actual.shape != value.shape:
        return failed(f"shape {actual.shape}, expected {value.shape}", ratio=np.inf)
    keep = np.ones(value.shape[:1], bool) if rows is None else rows
    ratio = oracle.ratio(actual[keep], value[keep], bound[keep])
    if ratio.size == 0:
        return Judgement(status="pass", ratio=0.0)
    index = np.flatnonzero(keep)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = (int(index[at[0]]), *map(int, at[1:]))
    worst = float(ratio[at])
    if worst > 1:
        proven = bool((oracle.ratio(actual[keep], value[keep], truth.worst[keep]) > 1).any())
        got, want = float(actual[place]), float(value[place])
        detail = f"{where(place)}: got {got:.9g}, expected {want:.9g} +- {float(bound[place]):.3g}"
        detail += f"; {int(np.sum(ratio > 1))} of {counted(ratio.size, 'element')} wrong"
        detail += f"; {_PROVEN if proven else _LIKELY}"
        return Judgement(status="fail", ratio=worst, detail=detail, proven=proven, ratios=ratio)
    deaf = _deaf_rows(value[keep], bound[keep])
    if deaf.all() if whole else deaf.any():
        row = (int(index[np.argmax(deaf)]), *(0 for _ in value.shape[1:]))
        detail = f"{where(row)}: all of the row is below its bound, zeros would pass"
        return Judgement(status="cannot tell", ratio=worst, detail=detail, ratios=ratio)
    return Judgement(status="pass", ratio=worst, ratios=ratio)


def equal(actual: np.ndarray, expected: np.ndarray, *, where: Where) -> Judgement:
    """Judge equality, NaN equal to NaN."""
    if actual.shape != expected.shape:
        return failed(f"shape {actual.shape}, expected {expected.shape}")
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    if same.all():
        return Judgement(status="pass")
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    detail = f"{where(place)}: got {actual[place]}, expected {expected[place]}"
    return failed(f"{detail}; {int((~same).sum())} of {same.size} differ")


def infinite_signs(
    actual: np.ndarray, truth: oracle.Value, *, where: Where, rows: np.ndarray | None = None
) -> Judgement:
    """Judge that Inf does not have the opposite sign of the Inf that is expected.

    It may be NaN, into which an Inf turns where operands are split into parts.

    Args:
        actual: what the kernel computed, of the shape of `truth`.
        truth: what the oracle computed.
        where: names an element for a reader.
        rows: which rows of the first axis to look at; None: all.

    Returns:
        `fail` at the first opposite sign.
    """
    opposite = np.isinf(truth.value) & (actual == -truth.value)
    if rows is not None:
        opposite = opposite & rows.reshape(-1, *(1,) * (opposite.ndim - 1))
    if not opposite.any():
        return Judgement(status="pass")
    place = tuple(int(i) for i in np.argwhere(opposite)[0])
    return failed(f"{where(place)}: got {actual[place]}, expected {truth.value[place]}")


def failed(detail: str, *, ratio: float | None = None) -> Judgement:
    """A failure that no rounding explains."""
    return Judgement(status="fail", ratio=ratio, detail=detail, proven=True)


def all_of(*judgements: Judgement) -> Judgement:
    """The worst of several: a failure, else `cannot tell`, else the largest ratio."""
    for status in ("fail", "cannot tell"):
        found = [j for j in judgements if j.status == status]
        if found:
            return max(found, key=lambda j: j.ratio or 0.0)
    return max(judgements, key=lambda j: j.ratio or 0.0)


def _deaf_rows(value: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Rows in which zeros would pass; a NaN or Inf that is asked for is never deaf."""
    rows = value.reshape(value.shape[0], -1)
    limit = bound.reshape(value.shape[0], -1)
    passes = (np.abs(rows) <= limit) & (limit > 0) & np.isfinite(rows)
    return np.asarray(passes.all(axis=1)) if rows.shape[1] else np.zeros(rows.shape[0], bool)
