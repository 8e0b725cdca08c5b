"""Value and gradients of every implementation against a loop in NumPy float64."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from grouped.reference import assert_correct, expected, integers, normal, run
from moe_ref import grouped
from moe_ref.grouped import grouped_matmul
from moe_ref.grouped._groups import offsets

IMPLEMENTATIONS = grouped.implementations()
DTYPES = [np.float64, np.float32, ml_dtypes.bfloat16, np.float16]
PATTERNS = [[8, 0, 8, 0], [0, 16, 0, 0], [0, 0, 0, 16], [0, 0, 0, 0], [3, 0, 2, 0], [12, 1, 0, 3]]

every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@every_implementation
@pytest.mark.parametrize("dtype", DTYPES)
def test_within_the_bound_for_every_dtype(implementation, dtype):
    x, w, cotangent = normal(16, 4, 64, 32, dtype)
    for sizes in PATTERNS:
        results = run(x, w, sizes, cotangent, implementation=implementation)
        assert [a.dtype for a in results] == [x.dtype] * 3
        assert_correct(results, expected(x, w, sizes, cotangent))


ROWS = [0, 1, 3, 9, 31, 33, 63, 64, 65, 99, 129]
MORE_ROWS = [32, 127, 128]
UNTILED = {name: [1, 9, 129] for name in ("loop", "xla")}


@pytest.mark.parametrize(
    ("implementation", "rows"),
    [(name, rows) for name in IMPLEMENTATIONS for rows in UNTILED.get(name, ROWS)]
    + [pytest.param("blocked", rows, marks=pytest.mark.thorough) for rows in MORE_ROWS],
)
def test_bug_21_tile_edges_in_rows(implementation, rows):
    x, w, cotangent = normal(rows, 2, 3, 2, np.float32, seed=rows)
    for second in {0, rows // 3, rows // 2, rows}:
        sizes = [rows - second, second]
        results = run(x, w, sizes, cotangent, implementation=implementation)
        assert_correct(results, expected(x, w, sizes, cotangent))


@every_implementation
@pytest.mark.parametrize("n", [128, 160])
def test_bug_21_tile_edges_in_columns(implementation, n):
    x, w, cotangent = normal(512, 2, 64, n, np.float32)
    for sizes in ([257, 255], [256, 256], [1, 511]):
        results = run(x, w, sizes, cotangent, implementation=implementation)
        assert_correct(results, expected(x, w, sizes, cotangent))


@every_implementation
@pytest.mark.parametrize("experts", [1, 2, 300])
def test_bug_21_one_and_many_groups(implementation, experts):
    x, w, cotangent = normal(99, experts, 2, 3, np.float32)
    rng = np.random.default_rng(experts)
    for chances in (np.full(experts, 1 / experts), rng.dirichlet(np.full(experts, 0.1))):
        sizes = rng.multinomial(99, chances)
        results = run(x, w, sizes, cotangent, implementation=implementation)
        assert_correct(results, expected(x, w, sizes, cotangent))


@every_implementation
@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 4)])
def test_single_columns(implementation, k, n):
    x, w, cotangent = normal(10, 3, k, n, np.float32)
    results = run(x, w, [4, 0, 5], cotangent, implementation=implementation)
    assert_correct(results, expected(x, w, [4, 0, 5], cotangent))


@every_implementation
def test_no_rows_give_zero_gradients(implementation):
    x, w, cotangent = normal(0, 2, 3, 2, np.float32)
    y, dx, dw = run(x, w, [0, 0], cotangent, implementation=implementation)
    assert (y.shape, dx.shape) == ((0, 2), (0, 3))
    np.testing.assert_array_equal(dw, np.zeros_like(w))


@every_implementation
def test_bug_19_gradient_of_an_empty_group_is_zero(implementation):
    x, w, cotangent = integers(16, 4, 64, 32, np.float32)
    for sizes in ([8, 0, 8, 0], [0, 16, 0, 0], [0, 0, 0, 16], [0, 0, 0, 0]):
        poisoned = w.copy()
        poisoned[np.equal(sizes, 0)] = np.nan
        results = run(x, poisoned, sizes, cotangent, implementation=implementation)
        wanted = expected(x, np.nan_to_num(poisoned), sizes, cotangent)
        for actual, bounded in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(actual, bounded.value)


@st.composite
def group_sizes(draw, rows=40, experts=5):
    cuts = draw(st.lists(st.integers(0, rows), min_size=experts, max_size=experts))
    return np.diff(np.sort([0, *cuts]))


@every_implementation
@hypothesis.given(sizes=group_sizes(), seed=st.integers(0, 99))
def test_exact_on_integers_whatever_the_sizes(implementation, sizes, seed):
    arrays = x, w, cotangent = integers(40, 5, 3, 4, np.float32, seed)
    results = run(x, w, sizes, cotangent, implementation=implementation)
    for actual, bounded in zip(results, expected(arrays[0], w, sizes, cotangent), strict=True):
        np.testing.assert_array_equal(actual, bounded.value)


@every_implementation
@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [(ml_dtypes.bfloat16, np.float32), (np.float16, np.float64)]
)
def test_wider_result_keeps_what_was_summed(implementation, dtype, out_dtype):
    x, w, _ = normal(16, 4, 64, 32, dtype)
    cotangent = np.random.default_rng(1).standard_normal((16, 32)).astype(out_dtype)
    sizes = [3, 0, 9, 2]
    results = run(x, w, sizes, cotangent, implementation=implementation, out_dtype=out_dtype)
    assert [a.dtype for a in results] == [out_dtype, dtype, dtype]
    assert_correct(results, expected(x, w, sizes, cotangent, out_dtype=out_dtype))


@every_implementation
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_bug_27_sums_are_kept_in_float32(implementation, dtype):
    # Every row and column holds one large term and seven ones, each lost in a narrow accumulator.
    large = 2 / float(ml_dtypes.finfo(dtype).eps)
    terms = np.where(np.eye(8), large, 1).astype(dtype)
    ones = np.ones((8, 8), dtype)
    total = np.full((8, 8), large + 7, dtype)
    assert (total > large).all()
    y, _, dw = run(terms, ones[None], [8], ones, implementation=implementation)
    np.testing.assert_array_equal(y, total)
    np.testing.assert_array_equal(dw[0], total)
    _, dx, dw = run(ones, ones[None], [8], terms, implementation=implementation)
    np.testing.assert_array_equal(dx, total)
    np.testing.assert_array_equal(dw[0], total)


@every_implementation
@pytest.mark.parametrize("sizes", [[200, 100], [120, 127]])
def test_bug_31_sizes_of_any_integer_dtype(implementation, sizes):
    x, w, cotangent = map(jnp.asarray, integers(301, 2, 2, 3, np.float32))
    wanted = expected(x, w, sizes, cotangent)
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        if max(sizes) > np.iinfo(name).max:
            continue
        # Eagerly: a program per dtype of the sizes would take its time to compile.
        matmul = functools.partial(
            grouped_matmul, group_sizes=jnp.array(sizes, name), implementation=implementation
        )
        y, pull = jax.vjp(matmul, x, w)
        for actual, bounded in zip((y, *pull(cotangent)), wanted, strict=True):
            np.testing.assert_array_equal(actual, bounded.value)


@every_implementation
def test_bug_31_more_rows_than_a_narrow_counter_holds(implementation):
    x, w, cotangent = integers(40_001, 2, 1, 1, np.float32)
    sizes = np.array([20_000, 20_001], np.int16)
    results = run(x, w, sizes, cotangent, implementation=implementation)
    for actual, bounded in zip(results, expected(x, w, sizes, cotangent), strict=True):
        np.testing.assert_array_equal(actual, bounded.value)


@every_implementation
def test_bug_31_shapes_past_the_range_of_int32(implementation):
    tokens, k, d, experts = 56_000, 8, 7168, 256
    x = jax.ShapeDtypeStruct((tokens * k, d), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((experts, d, 4096), jnp.bfloat16)
    sizes = jax.ShapeDtypeStruct((experts,), jnp.int32)
    assert x.size > np.iinfo(np.int32).max

    def loss(x, w, sizes):
        y = grouped_matmul(x, w, sizes, implementation=implementation)
        return jnp.sum(y.astype(jnp.float32))

    dx, dw = jax.eval_shape(jax.grad(loss, argnums=(0, 1)), x, w, sizes)
    assert (dx.shape, dw.shape) == (x.shape, w.shape)


def test_groups_end_at_the_last_row_where_sizes_wrap():
    rows = 2**23
    at = jax.jit(offsets, static_argnums=1)
    starts, ends = at(jnp.full(256, rows, jnp.int32), rows)
    assert starts.tolist() == [0] + [rows] * 255
    assert ends.tolist() == [rows] * 256
    _, ends = at(jnp.full(256, 2**15, jnp.int32), rows)
    assert ends.tolist() == [2**15 * e for e in range(1, 257)]
