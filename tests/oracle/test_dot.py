"""Dot products: every order of summation is inside, and the bound can fail."""

import ml_dtypes
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.oracle._dot import gamma_likely, gamma_worst
from moe_ref.oracle._formats import FORMATS
from moe_ref.spec import Numerics

N = 512
BF16 = ml_dtypes.bfloat16


def sequential(x, w):
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for i in range(x.shape[1]):
        total = total + np.outer(x[:, i], w[i])
    return total


def blocked(x, w, size=64):
    parts = [x[:, i : i + size] @ w[i : i + size] for i in range(0, x.shape[1], size)]
    return np.sum(parts, axis=0, dtype=np.float32)


def pairwise(x, w):
    terms = (x[:, :, None] * w[None]).astype(np.float32)
    while terms.shape[1] > 1:
        terms = terms[:, ::2] + terms[:, 1::2]
    return terms[:, 0]


KERNELS = {"blas": np.matmul, "sequential": sequential, "blocked": blocked, "pairwise": pairwise}
DATA = {
    "normal": lambda r, s: r.standard_normal(s),
    "positive": lambda r, s: r.random(s) + 0.5,
    "wide": lambda r, s: r.standard_normal(s) * 2.0 ** r.integers(-20, 20, s),
    "constant": lambda r, s: np.full(s, 0.1),
    "rank-one": lambda r, s: np.outer(np.ones(s[0]), np.full(s[1], 0.1)) * r.choice([0.3, 0.7]),
    "two-valued": lambda r, s: r.choice([0.1, 0.30001], s),
    "cancelling": lambda r, s: (
        np.repeat(r.standard_normal((s[0], s[1])), 2, 1)[:, : s[1]]
        * np.where(np.arange(s[1]) % 2, -1, 1.0001)
    ),
    "integers": lambda r, s: r.integers(-8, 9, s).astype(float),
    "tiny": lambda r, s: r.standard_normal(s) * 2.0**-75,
    "arange": lambda r, s: np.arange(s[0] * s[1]).reshape(s) / 7,
    "mostly-zero": lambda r, s: r.standard_normal(s) * (r.random(s) < 0.05),
}


def drawn(data, dtype=np.float32):
    rng = np.random.default_rng(len(data))
    x, w = DATA[data](rng, (24, N)), DATA[data](rng, (N, 16))
    return x.astype(dtype), w.astype(dtype)


def judged(y, x, w, **numerics):
    declared = Numerics(**numerics)
    z = oracle.grouped_matmul(x, w[None], [len(x)], numerics=declared)
    assert (z.bound <= z.worst).all()
    return oracle.ratio(y, z.value, z.bound).max(), oracle.ratio(y, z.value, z.worst).max()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("data", DATA)
def test_any_order_is_inside(data, kernel):
    x, w = drawn(data)
    bound, worst = judged(KERNELS[kernel](x, w), x, w)
    assert bound <= 1
    assert worst <= 1
    if data == "integers":
        assert bound == 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("data", DATA)
def test_bfloat16_inputs_and_output_are_inside(data, kernel):
    x, w = drawn(data, BF16)
    y = KERNELS[kernel](x.astype(np.float32), w.astype(np.float32)).astype(BF16)
    bound, worst = judged(y, x, w, inputs="bfloat16", output="bfloat16")
    assert bound <= 1
    assert worst <= 1


def toward_zero(a):
    """float64 to float32, truncated."""
    near = a.astype(np.float32)
    return np.where(np.abs(near) > np.abs(a), np.nextafter(near, np.float32(0)), near)


@pytest.mark.parametrize("data", ["normal", "positive", "constant"])
def test_truncating_accumulators_must_say_so(data):
    x, w = drawn(data)
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for i in range(N):
        total = toward_zero(total + np.outer(x[:, i], w[i]).astype(np.float64))
    assert judged(total, x, w, accumulate_rounding="toward_zero")[0] <= 1
    if data == "positive":
        assert judged(total, x, w)[0] > 1


def bfloat16_sums(x, w):
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for i in range(N):
        total = (total + np.outer(x[:, i], w[i])).astype(BF16).astype(np.float32)
    return total


FAULTS = {
    "scaled by 1.001": lambda x, w: x @ w * np.float32(1.001),
    "one term dropped": lambda x, w: x[:, 1:] @ w[1:],
    "bfloat16 sums": bfloat16_sums,
    "bfloat16 halves": lambda x, w: (x[:, :256] @ w[:256]).astype(BF16) + x[:, 256:] @ w[256:],
    "ten-bit inputs": lambda x, w: (x * 1024).round() / 1024 @ w,
    "zero": lambda x, w: 0 * (x @ w),
    "one row of zeros": lambda x, w: x @ w * (np.arange(len(x)) != 5)[:, None],
    "nan": lambda x, w: np.where(np.arange(len(x)) == 5, np.nan, 1)[:, None] * (x @ w),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_outside(fault):
    x, w = drawn("normal")
    bound, _ = judged(FAULTS[fault](x, w), x, w)
    assert bound > 1


def test_faults_of_rounding_the_output():
    x, w = drawn("normal", BF16)
    x32, w32 = x.astype(np.float32), w.astype(np.float32)
    declared = {"inputs": "bfloat16", "output": "bfloat16"}
    exact = x32 @ w32
    truncated = (exact.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert judged(truncated, x, w, **declared)[0] > 1
    assert judged(exact.astype(BF16), x, w, **declared)[0] <= 1


def test_gamma():
    u = 2.0**-24
    assert gamma_worst(100, u) == 100 * u / (1 - 100 * u)
    assert gamma_worst(2**24, u) == np.inf
    for n in (1, 35, 36, 37, 7168):
        assert gamma_likely(n, u) <= gamma_worst(n, u)
    assert gamma_likely(35, u) == gamma_worst(35, u)
    assert gamma_likely(7168, u) < gamma_worst(7168, u) / 14


@pytest.mark.parametrize("data", ["constant", "rank-one", "two-valued"])
def test_low_entropy_falls_back_to_the_worst_case(data):
    x, w = drawn(data)
    z = oracle.grouped_matmul(x, w[None], [len(x)])
    np.testing.assert_array_equal(z.bound, z.worst)
    x, w = drawn("normal")
    z = oracle.grouped_matmul(x, w[None], [len(x)])
    assert (z.bound < z.worst / 2).all()


def test_overflow_is_not_judged():
    x, w = np.full((1, 4), 1e38, np.float32), np.full((1, 4, 1), 10, np.float32)
    z = oracle.grouped_matmul(x, w, [1])
    assert z.bound.tolist() == [[np.inf]]
    assert oracle.ratio([[np.inf]], z.value, z.bound).tolist() == [[0.0]]


def test_subnormal_inputs_may_be_flushed_unless_declared_otherwise():
    x, w = np.full((1, 4), 2.0**-130, np.float32), np.ones((1, 4, 1), np.float32)
    z = oracle.grouped_matmul(x, w, [1])
    assert oracle.ratio([[0.0]], z.value, z.bound).max() <= 1
    z = oracle.grouped_matmul(x, w, [1], numerics=Numerics(flushes_subnormals=False))
    assert oracle.ratio([[0.0]], z.value, z.bound).max() > 1
    assert oracle.ratio(x @ w[0], z.value, z.bound).max() <= 1


def test_tf32_operands_are_inside_where_they_are_declared():
    x, w = drawn("normal")
    narrow = FORMATS["tf32"].nearest
    y = (narrow(x.astype(float)) @ narrow(w.astype(float))).astype(np.float32)
    plain, _ = judged(y, x, w)
    assert plain > 1
    declared, _ = judged(y, x, w, multiply="tf32")
    assert 0.01 < declared <= 1
    y = (x.astype(BF16).astype(float) @ w.astype(BF16).astype(float)).astype(np.float32)
    assert judged(y, x, w, multiply="tf32")[0] > 1


@pytest.mark.parametrize("data", ["normal", "positive", "rank-one", "constant"])
def test_truncated_sums_are_inside_where_they_are_declared(data):
    x, w = drawn(data, BF16)
    total = np.zeros((len(x), w.shape[1]))
    for i in range(N):
        exact = total + np.outer(x[:, i].astype(float), w[i].astype(float))
        nearest = exact.astype(np.float32).astype(float)
        beyond = np.abs(nearest) > np.abs(exact)
        total = np.where(beyond, np.nextafter(nearest.astype(np.float32), np.float32(0)), nearest)
    numerics = {"inputs": "bfloat16", "accumulate_rounding": "toward_zero"}
    bound, worst = judged(total.astype(np.float32), x, w, **numerics)
    assert bound <= 1
    assert worst <= 1


def test_sums_of_fewer_bits_widen_the_bound():
    x, w = drawn("normal", BF16)
    wide, narrow = (
        oracle.grouped_matmul(x, w[None], [len(x)], numerics=Numerics(accumulate=name)).bound
        for name in ("float32", "e8m13")
    )
    assert (narrow > 500 * wide).all()
