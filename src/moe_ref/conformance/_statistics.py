r"""Faults that are too small for any one element's bound, and everywhere.

The errors of a correct kernel on random data have a predicted variance and no direction. With
$r = (y - v) / \sqrt{\mathrm{var}}$, cut off at 8, and rows as independent clusters:

- **rms**: $(\overline{R} - 1) / \mathrm{sd}(\overline{R})$, $R_t$ the mean square of row t: errors
  larger than declared;
- **score**: $\sum_t q_t / \sqrt{\sum_t q_t^2}$, $q_t = \sum_c r_{tc} d_{tc}$: errors that point
  along a direction $d$, such as the value itself (a factor) or its sign (truncation);
- **misrounded**: how many results are not the value rounded to nearest, against how many may be.

The score needs no model of the variance: for independent symmetric clusters
$P(|\mathrm{score}| > \lambda) \le 2 e^{-\lambda^2/2}$. All thresholds are $\lambda = 6$.
"""

import math

import numpy as np

from moe_ref import oracle
from moe_ref._counted import counted
from moe_ref.conformance._result import Judgement

THRESHOLD = 6.0
CLUSTERS = 48  # a score is at most the root of their number
_LARGEST, _STEEPEST = 8.0, 3.0


def residuals(actual: np.ndarray, truth: oracle.Value) -> np.ndarray:
    """Errors over their predicted deviation, [clusters, values], cut off at 8; exact is 0."""
    error = np.asarray(actual, np.float64) - truth.value
    deviation = np.sqrt(truth.variance)
    with np.errstate(all="ignore"):
        scaled = np.where(error == 0, 0.0, error / deviation)
    scaled = np.clip(np.nan_to_num(scaled, nan=_LARGEST), -_LARGEST, _LARGEST)
    return scaled.reshape(len(scaled), -1)


def rms(actual: np.ndarray, truth: oracle.Value) -> Judgement:
    """Judge the size of the errors."""
    r = residuals(actual, truth)
    if len(r) < CLUSTERS:
        return _too_few(len(r))
    squares = (r**2).mean(axis=1)
    size = math.sqrt(squares.mean())
    deviation = squares.std(ddof=1) / math.sqrt(len(r))
    z = (squares.mean() - 1) / deviation if deviation > 0 else (squares.mean() - 1) * math.inf
    said = f"errors are {size:.3g} times as large as declared"
    return _verdict(0.0 if math.isnan(z) else z, said)


def score(actual: np.ndarray, truth: oracle.Value, direction: np.ndarray, what: str) -> Judgement:
    """Judge whether the errors point along a direction of the shape of `actual`."""
    r = residuals(actual, truth)
    if len(r) < CLUSTERS:
        return _too_few(len(r))
    d = np.asarray(direction, np.float64).reshape(r.shape)
    size = math.sqrt((d**2).mean()) if d.size else 0.0
    if size == 0:
        return Judgement(status="cannot tell", detail=f"{what}: the direction is zero")
    q = (r * np.clip(d / size, -_STEEPEST, _STEEPEST)).sum(axis=1)
    norm = math.sqrt((q**2).sum())
    return _verdict(abs(q.sum()) / norm if norm else 0.0, f"errors point along {what}")


def misrounded(actual: np.ndarray, truth: oracle.Value, dtype: np.dtype) -> Judgement:
    r"""Judge how many narrow results are not the nearest to the value.

    At most $L = \sum \min(1, \sqrt{2/\pi}\, \sigma / \mathrm{ulp})$ are expected, $\sigma$ the
    deviation before the last rounding.
    """
    nearest = truth.value.astype(dtype)
    spacing = np.abs(np.spacing(nearest.astype(np.float32))).astype(np.float64)
    spacing *= 2.0 ** (23 - _FRACTION[dtype.name])
    before = np.sqrt(np.maximum(truth.variance - spacing**2 / 12, 0.0))
    limit = float(np.minimum(1.0, math.sqrt(2 / math.pi) * before / spacing).sum())
    wrong = int((actual.astype(np.float64) != nearest.astype(np.float64)).sum())
    allowed = limit + THRESHOLD * math.sqrt(limit) + 12
    said = f"{wrong} of {actual.size} results are not the nearest, at most {allowed:.0f} may be"
    if wrong <= allowed:
        return Judgement(status="pass", ratio=wrong / allowed)
    return Judgement(status="fail", ratio=wrong / allowed, detail=said)


_FRACTION = {"bfloat16": 7, "float16": 10}


def _verdict(z: float, said: str) -> Judgement:
    ratio = max(z, 0.0) / THRESHOLD
    if z <= THRESHOLD:
        return Judgement(status="pass", ratio=ratio)
    detail = f"{said}: {z:.3g} standard deviations, {THRESHOLD:g} allowed"
    return Judgement(status="fail", ratio=ratio, detail=detail)


def _too_few(clusters: int) -> Judgement:
    detail = f"{counted(clusters, 'row')} of errors, {CLUSTERS} are needed"
    return Judgement(status="cannot tell", detail=detail)
