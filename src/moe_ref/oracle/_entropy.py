"""Whether a sum is long enough, in distinct numbers, for its rounding errors to average out."""

import math

import numpy as np

from moe_ref.oracle._formats import Format


def low_entropy(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    r"""Where the products of a dot product repeat, so that their roundings may all agree.

    $$\mathrm{distinct}(|a_{row}|) \cdot \mathrm{distinct}(|w_{col}|) < n$$

    Constant and rank-one data lie here: they break the probabilistic bound, by a factor of 3 at
    n = 7168. The rule is a heuristic that found every case tried, not a proof.

    Args:
        a: [rows, n].
        w: [n, columns].

    Returns:
        [rows, columns] bool.

    Complexity:
        One sort of each row of `a`; of `w` usually the first few rows only, since counting can
        stop as soon as the product is large enough for every row of `a`.
    """
    n = a.shape[1]
    of_rows = _distinct(a, n)
    enough = math.ceil(n / max(1, of_rows.min(initial=n)))
    of_columns = _distinct(w.T, enough)
    return of_rows[:, None] * of_columns[None, :] < n


def low_entropy_rows(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The same for the dot products of each row of `a` with the same row of `c`: [rows]."""
    n = a.shape[1]
    return _distinct(a, n) * _distinct(c, n) < n


def _distinct(rows: np.ndarray, enough: int) -> np.ndarray:
    """Distinct magnitudes in each row; at least `enough` is as good as the true count."""
    start = min(rows.shape[1], 4 * enough)
    counts = _count(rows[:, :start])
    few = np.flatnonzero(counts < enough)
    if start < rows.shape[1] and few.size:
        counts[few] = _count(rows[few])
    return counts


def _count(rows: np.ndarray) -> np.ndarray:
    if not rows.shape[1]:
        return np.zeros(rows.shape[0], np.int64)
    # In float32, so that numbers equal but for the oracle's own rounding count once.
    ordered = np.sort(np.abs(rows).astype(np.float32), axis=1)
    return 1 + np.count_nonzero(np.diff(ordered, axis=1), axis=1)


def coherence(w: np.ndarray) -> float:
    r"""By how much errors that pass through `w` exceed independent ones when they are summed again.

    Independent errors of size s become $\epsilon W$, whose elements share them. Summed once more
    with weights v they have scale at most $s\,\sigma_1 |v|$, where independent errors of the same
    size would have $s\,|W|_F |v| / \sqrt{\mathrm{columns}}$. The ratio is about 2 for random
    matrices, which $\lambda$ has room for, and up to $\sqrt{\mathrm{columns}}$ for positive ones.

    Args:
        w: [n, columns].

    Returns:
        Half the ratio, at least 1.
    """
    total = np.sum(w**2)
    if not (np.isfinite(total) and total > 0):
        return 1.0
    v = np.random.default_rng(0).standard_normal(w.shape[1])
    for _ in range(4):  # the larger the gap, the faster
        v = w.T @ (w @ v)
        v /= np.sqrt(np.sum(v**2))
    return max(1.0, float(np.sqrt(np.sum((w @ v) ** 2) * w.shape[1] / total)) / 2)


def sums_exactly(a: np.ndarray, w: np.ndarray, mass: np.ndarray, format: Format) -> np.ndarray:
    r"""Where a sum of products is exact in any order.

    If every product is a multiple of $q$ and $\sum |a w| \le 2^{\mathrm{bits}} q$, every partial
    sum is representable: integers, powers of two, zeros.

    Args:
        a: first operands.
        w: second operands.
        mass: $\sum |a w|$ of each sum.
        format: of the running sum.

    Returns:
        bool, of the shape of `mass`.
    """
    zero = mass == 0
    smallest = np.min(mass, where=~zero, initial=np.inf)
    if smallest > _reach(_quantum(a.ravel()[:256]), _quantum(w.ravel()[:256]), format):
        return zero
    return zero | (mass <= _reach(_quantum(a), _quantum(w), format))


def _reach(a: float, w: float, format: Format) -> float:
    """The largest sum of multiples of a * w that is surely exact; -1 if some are subnormal."""
    if min(a, w, a * w) < format.smallest_normal:
        return -1.0
    return math.ldexp(a * w, format.bits)


def _quantum(numbers: np.ndarray) -> float:
    """The largest power of two that divides all numbers; 1 if all are zero."""
    mantissa, exponent = np.frexp(numbers[np.isfinite(numbers) & (numbers != 0)])
    if not mantissa.size:
        return 1.0
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponent - 53).min())
