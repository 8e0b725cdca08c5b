"""Grouped matmul: groups, tails, containment, gradients, errors."""

import numpy as np
import pytest

from moe_ref import oracle

RNG = np.random.default_rng(0)
SIZES = np.array([3, 0, 5, 2])
X = RNG.standard_normal((13, 6)).astype(np.float32)
W = RNG.standard_normal((4, 6, 5)).astype(np.float32)
DZ = RNG.standard_normal((13, 5)).astype(np.float32)


def by_hand(x, w, sizes):
    z, row = np.zeros((len(x), w.shape[2])), 0
    for e, size in enumerate(sizes):
        for _ in range(size):
            z[row] = x[row].astype(float) @ w[e].astype(float)
            row += 1
    return z


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_values(dtype):
    z = oracle.grouped_matmul(X, W, SIZES.astype(dtype))
    assert oracle.ratio(by_hand(X, W, SIZES), z.value, z.bound).max() <= 1
    assert not z.value[10:].any()
    assert not z.bound[10:].any()


def test_a_group_at_the_wrong_expert_is_outside():
    z = oracle.grouped_matmul(X, W, SIZES)
    assert oracle.ratio(by_hand(X, W[::-1], SIZES), z.value, z.bound)[:10].min(axis=1).max() > 1


def test_nan_reaches_its_group_only():
    x, w = X.copy(), W.copy()
    x[4, 2] = np.nan
    w[3, 0, 1] = np.inf
    w[1] = np.nan  # an empty group
    x[11] = np.nan  # the tail
    z = oracle.grouped_matmul(x, w, SIZES)
    finite = np.isfinite(z.value)
    expected = np.ones((13, 5), bool)
    expected[4] = False
    expected[8:10, 1] = False
    np.testing.assert_array_equal(finite, expected)
    np.testing.assert_array_equal(np.isfinite(z.bound), expected)
    clean = oracle.grouped_matmul(X, W, SIZES)
    np.testing.assert_array_equal(z.value[finite], clean.value[finite])
    np.testing.assert_array_equal(z.bound[finite], clean.bound[finite])


def test_gradients_by_hand():
    cotangent = DZ.copy()
    cotangent[10:] = np.nan
    g = oracle.grouped_matmul_vjp(X, W, SIZES, cotangent)
    row = 0
    for e, size in enumerate(SIZES):
        rows = slice(row, row + size)
        row += size
        dx = DZ[rows].astype(float) @ W[e].astype(float).T
        dw = X[rows].astype(float).T @ DZ[rows].astype(float)
        assert oracle.ratio(dx, g.x.value[rows], g.x.bound[rows]).max(initial=0) <= 1
        assert oracle.ratio(dw, g.w.value[e], g.w.bound[e]).max() <= 1
        assert oracle.ratio(dw * 1.001, g.w.value[e], g.w.bound[e]).max() > 1 or not size
    for part in (g.x.value[10:], g.x.bound[10:], g.w.value[1], g.w.bound[1]):
        assert not part.any()


def test_reads_only_the_experts_of_filled_groups():
    class Matrices:
        shape = W.shape

        def __init__(self):
            self.read = []

        def __array__(self, dtype=None, copy=None):
            raise AssertionError("all experts were read at once")

        def __getitem__(self, expert):
            self.read.append(expert)
            return W[expert]

    matrices = Matrices()
    z = oracle.grouped_matmul(X, matrices, SIZES)
    np.testing.assert_array_equal(z.value, oracle.grouped_matmul(X, W, SIZES).value)
    assert matrices.read == [0, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, W, [14, 0, 0, 0]), "`group_sizes` must be at most rows=13 in sum; got 14."),
        ((X, W, [3, 0]), "`group_sizes` must be at least 0, of shape"),
        ((X, W, [3, -1, 0, 0]), "`group_sizes` must be at least 0, of shape"),
        ((X, W, [3.0, 5.0, 0.0, 0.0]), "`group_sizes` must be integers; got float64."),
        ((X[:, :4], W, SIZES), "`w` must be of shape"),
        ((X[0], W, SIZES), "`x` must be of shape"),
        ((X.astype(int), W, SIZES), "`x.dtype` must be one of"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        oracle.grouped_matmul(*arguments)
