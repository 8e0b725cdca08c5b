"""Public faults of grouped matmuls, each as the small case that shows it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.grouped import grouped_matmul, implementations
from properties.judge import assert_within


@functools.partial(jax.jit, static_argnames="implementation")
def pulled(x, w, group_sizes, cotangent, *, implementation):
    multiply = functools.partial(
        grouped_matmul, group_sizes=group_sizes, implementation=implementation
    )
    y, back = jax.vjp(multiply, x, w)
    return y, *back(cotangent)


def normal(seed, *shape):
    values = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(values, jnp.float32)


def integers(seed, *shape):
    """Sums of products are exact, in any order."""
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape), jnp.float32)


def judge(x, w, sizes, cotangent, results):
    y, dx, dw = results
    assert_within(y, oracle.grouped_matmul(x, w, sizes), "y")
    truth = oracle.grouped_matmul_vjp(x, w, sizes, cotangent)
    assert_within(dx, truth.x, "dx")
    assert_within(dw, truth.w, "dw")


@pytest.mark.parametrize("implementation", implementations())
def test_a_group_without_rows_has_gradient_0(implementation):
    """Whatever its matrix holds; the others have that of a loop over experts."""
    x, w, cotangent = normal(0, 16, 64), normal(1, 4, 64, 32), normal(2, 16, 32)
    for sizes in ([8, 0, 8, 0], [0, 16, 0, 0], [0, 0, 0, 16], [0, 0, 0, 0]):
        sizes = jnp.array(sizes)
        poisoned = jnp.where((sizes == 0)[:, None, None], jnp.nan, w)
        results = pulled(x, poisoned, sizes, cotangent, implementation=implementation)
        judge(x, w, sizes, cotangent, results)
        assert not results[2][sizes == 0].any()


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("sizes", [[3, 0, 2, 0], [5]])
def test_rows_past_the_last_group_reach_nothing(sizes, poison, implementation):
    """Poison them in x and in the cotangent: the same bits as the problem without them."""
    groups = len(sizes)
    x, w, cotangent = integers(0, 16, 8), integers(1, groups, 8, 6), integers(2, 16, 6)
    sizes = jnp.array(sizes)
    wanted = pulled(x[:5], w, sizes, cotangent[:5], implementation=implementation)
    tail = (jnp.arange(16) >= 5)[:, None]
    dirty_x, dirty_cotangent = (jnp.where(tail, poison, a) for a in (x, cotangent))
    y, dx, dw = pulled(dirty_x, w, sizes, dirty_cotangent, implementation=implementation)
    assert (y[:5] == wanted[0]).all()
    assert (dx[:5] == wanted[1]).all()
    assert (dw == wanted[2]).all()
    assert not y[5:].any()
    assert not dx[5:].any()


@pytest.mark.parametrize("implementation", implementations())
def test_poisoned_rows_stay_out_of_two_matmuls_and_an_activation(implementation):
    """What the tail of the first product holds reaches the second's weight gradient by no path."""
    x, w1, w2 = integers(0, 16, 8), integers(1, 4, 8, 6), integers(2, 4, 3, 5)
    cotangent, sizes = integers(3, 16, 5), jnp.array([3, 0, 2, 0])

    @jax.jit
    def run(x, w1, w2, cotangent):
        def expert(x, w1, w2):
            rows = functools.partial(
                grouped_matmul, group_sizes=sizes, implementation=implementation
            )
            projected = rows(x, w1)
            return rows(jnp.maximum(projected[:, :3], 0) * projected[:, 3:], w2)

        y, back = jax.vjp(expert, x, w1, w2)
        return y, *back(cotangent)

    tail = (jnp.arange(16) >= 5)[:, None]
    clean = run(*(jnp.where(tail, 0, x),), w1, w2, cotangent)
    dirty = run(jnp.where(tail, jnp.nan, x), w1, w2, jnp.where(tail, jnp.inf, cotangent))
    for mine, wanted in zip(dirty, clean, strict=True):
        assert (mine == wanted).all()


SHAPES = [
    (512, 64, 128, [257, 255]),
    (512, 64, 160, [256, 256]),
    (99, 16, 24, [33, 1, 65]),
    (31, 16, 24, [0, 31]),
    (9, 16, 24, [9]),
    (1, 16, 24, [0, 1, 0]),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[2]}")
def test_odd_rows_and_widths(shape):
    """Rows and columns that fill no tile, boundaries at odd rows."""
    rows, k, n, sizes = shape
    x, w, cotangent = normal(0, rows, k), normal(1, len(sizes), k, n), normal(2, rows, n)
    results = pulled(x, w, jnp.array(sizes), cotangent, implementation="auto")
    judge(x, w, sizes, cotangent, results)


def test_three_hundred_experts_with_a_row_now_and_then():
    sizes = np.zeros(300, np.int32)
    sizes[[0, 7, 150, 299]] = [1, 30, 2, 30]
    x, w, cotangent = normal(0, 63, 8), normal(1, 300, 8, 4), normal(2, 63, 4)
    results = pulled(x, w, jnp.asarray(sizes), cotangent, implementation="auto")
    judge(x, w, sizes, cotangent, results)


@pytest.mark.parametrize("implementation", implementations())
def test_no_rows(implementation):
    empty = jnp.zeros((0, 8), jnp.float32)
    y, dx, dw = pulled(
        empty, normal(0, 2, 8, 4), jnp.array([0, 0]), empty[:, :4], implementation=implementation
    )
    assert y.shape == (0, 4)
    assert dx.shape == (0, 8)
    assert dw.shape == (2, 8, 4)
    assert not dw.any()
