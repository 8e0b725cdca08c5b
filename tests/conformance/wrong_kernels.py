"""Wrong grouped matmuls, and right ones that differ in legal ways; NumPy, to be quick."""

import numpy as np


def _parts(x, w, group_sizes):
    x, w = np.asarray(x), np.asarray(w)
    sizes = np.asarray(group_sizes).astype(int)
    ends = np.cumsum(sizes)
    return (
        x,
        w,
        [
            (e, int(end - size), int(end))
            for e, (size, end) in enumerate(zip(sizes, ends, strict=True))
        ],
    )


def _grouped(x, w, group_sizes, *, product=None, owner=lambda e, experts: e, shift=0):
    x, w, groups = _parts(x, w, group_sizes)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    y = np.zeros((len(x), w.shape[2]), wide)
    for e, start, stop in groups:
        rows = slice(max(start + shift, 0), max(stop + shift, 0))
        matrix = w[owner(e, len(w))].astype(wide)
        rows_x = x[rows].astype(wide)
        y[rows] = rows_x @ matrix if product is None else product(rows_x, matrix, e)
    return y.astype(x.dtype)


def correct(x, w, group_sizes):
    return _grouped(x, w, group_sizes)


def correct_in_blocks(x, w, group_sizes):
    def product(a, b, e):
        return sum(a[:, i : i + 16] @ b[i : i + 16] for i in range(0, a.shape[1], 16))

    return _grouped(x, w, group_sizes, product=product)


def correct_reversed(x, w, group_sizes):
    return _grouped(x, w, group_sizes, product=lambda a, b, e: a[:, ::-1] @ b[::-1])


def zeros(x, w, group_sizes):
    return np.zeros((np.shape(x)[0], np.shape(w)[2]), np.asarray(x).dtype)


def swapped_experts(x, w, group_sizes):
    return _grouped(x, w, group_sizes, owner=lambda e, n: {0: 1, 1: 0}.get(e, e) if n > 1 else e)


def next_expert(x, w, group_sizes):
    return _grouped(x, w, group_sizes, owner=lambda e, n: min(e + 1, n - 1))


def first_expert_for_all(x, w, group_sizes):
    return _grouped(x, w, group_sizes, owner=lambda e, n: 0)


def rows_off_by_one(x, w, group_sizes):
    return _grouped(x, w, group_sizes, shift=1)


def skips_empty_groups(x, w, group_sizes):
    """Counts only groups that have rows, so an empty group shifts the weights."""
    sizes = np.asarray(group_sizes).astype(int)
    filled = np.concatenate([sizes[sizes > 0], sizes[sizes == 0]])
    return _grouped(x, w, filled)


def drops_last_row(x, w, group_sizes):
    y = _grouped(x, w, group_sizes)
    total = int(np.asarray(group_sizes).astype(int).sum())
    y[max(total - 1, 0) : total] = 0
    return y


def whole_tiles_only(x, w, group_sizes):
    """Forgets the rows after the last whole tile of 32."""
    y = _grouped(x, w, group_sizes)
    for _, start, stop in _parts(x, w, group_sizes)[2]:
        y[start + (stop - start) // 32 * 32 : stop] = 0
    return y


def one_expert_off_by_a_thousandth(x, w, group_sizes):
    return _grouped(x, w, group_sizes, product=lambda a, b, e: (a @ b) * (1.001 if e == 1 else 1))


def bfloat16_sums(x, w, group_sizes):
    import ml_dtypes

    def product(a, b, e):
        total = np.zeros((len(a), b.shape[1]), ml_dtypes.bfloat16)
        for i in range(a.shape[1]):
            total = (total.astype(np.float32) + np.outer(a[:, i], b[i])).astype(ml_dtypes.bfloat16)
        return total.astype(np.float32)

    return _grouped(x, w, group_sizes, product=product)


def masked_dense(x, w, group_sizes):
    """Every expert on every row, times a mask of 0 and 1: 0 * NaN is NaN."""
    x, w, groups = _parts(x, w, group_sizes)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    y = np.zeros((len(x), w.shape[2]), wide)
    for e, start, stop in groups:
        mask = np.zeros((len(x), 1), wide)
        mask[start:stop] = 1
        y += mask * (x.astype(wide) @ w[e].astype(wide))
    return y.astype(x.dtype)


def reads_the_tail(x, w, group_sizes):
    """Adds the mean of all rows, times 0: a NaN in the tail reaches everything."""
    y = _grouped(x, w, group_sizes)
    return y + (np.asarray(x).astype(np.float32).sum() * 0).astype(y.dtype)


def swallows_nan(x, w, group_sizes):
    return _grouped(np.nan_to_num(np.asarray(x).astype(np.float32)), w, group_sizes).astype(
        np.asarray(x).dtype
    )


def transposes_square_weights(x, w, group_sizes):
    w = np.asarray(w)
    return _grouped(x, np.swapaxes(w, 1, 2) if w.shape[1] == w.shape[2] else w, group_sizes)


def narrow_offsets(x, w, group_sizes):
    """Keeps the offsets in the integer type of the sizes, which wraps."""
    sizes = np.asarray(group_sizes)
    ends = np.cumsum(sizes, dtype=sizes.dtype).astype(int) % (len(np.asarray(x)) + 1)
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    return _grouped(x, w, np.maximum(ends - starts, 0))


def float32_result(x, w, group_sizes):
    return _grouped(x, w, group_sizes).astype(np.float32)


def small_is_zero(x, w, group_sizes):
    y = _grouped(x, w, group_sizes)
    return np.where(np.abs(y) < 1e-4, np.zeros_like(y), y)


class _Flaky:
    calls = 0


def changes_between_runs(x, w, group_sizes):
    _Flaky.calls += 1
    y = _grouped(x, w, group_sizes)
    return y if _Flaky.calls % 2 else np.nextafter(y.astype(np.float32), np.inf).astype(y.dtype)


RIGHT = (correct, correct_in_blocks, correct_reversed)
WRONG = {
    zeros: {"GRP-02", "GRP-12", "GRP-13"},
    swapped_experts: {"GRP-02"},
    next_expert: {"GRP-02"},
    first_expert_for_all: {"GRP-02"},
    rows_off_by_one: {"GRP-02"},
    skips_empty_groups: {"GRP-04"},
    drops_last_row: {"GRP-02"},
    whole_tiles_only: {"GRP-02", "GRP-06"},
    one_expert_off_by_a_thousandth: {"GRP-02"},
    bfloat16_sums: {"GRP-02"},
    masked_dense: {"GRP-10", "GRP-11"},
    reads_the_tail: {"GRP-08", "GRP-10"},
    swallows_nan: {"GRP-10"},
    transposes_square_weights: {"GRP-13"},
    narrow_offsets: {"GRP-14"},
    float32_result: {"GRP-01"},
    small_is_zero: {"GRP-12"},
    changes_between_runs: {"GRP-15"},
}
