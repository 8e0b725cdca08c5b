"""jit, vmap, shard_map, higher derivatives; one program for all group sizes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from grouped.reference import assert_correct, expected, integers, normal, run
from moe_ref import grouped
from moe_ref.grouped import _matmul, grouped_matmul

IMPLEMENTATIONS = grouped.implementations()
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
SIZES = [[3, 0, 2], [1, 1, 5], [0, 0, 0], [0, 8, 0]]


@every_implementation
def test_bug_42_other_sizes_compile_nothing(implementation):
    x, w, _ = integers(8, 3, 2, 4, np.float32)
    function = jax.jit(lambda x, w, s: grouped_matmul(x, w, s, implementation=implementation))
    for sizes in SIZES:
        function(x, w, jnp.array(sizes))
    assert function._cache_size() == 1
    arrays = jnp.asarray(x), jnp.asarray(w)
    grouped_matmul(*arrays, jnp.array(SIZES[0]), implementation=implementation)
    compiled = _matmul._run._cache_size()
    for sizes in SIZES[1:]:
        grouped_matmul(*arrays, jnp.array(sizes), implementation=implementation)
    assert _matmul._run._cache_size() == compiled


def batched(batch, subset):
    """Operands with a batch axis on those in `subset`, and the axes for vmap."""
    stacked = [integers(8, 3, 2, 4, np.float32, seed) for seed in range(batch)]
    x, w, cotangent = (np.stack(arrays) for arrays in zip(*stacked, strict=True))
    sizes = np.array(SIZES[:batch])
    operands = [a if i in subset else a[0] for i, a in enumerate((x, w, sizes))]
    return operands, cotangent, [0 if i in subset else None for i in range(3)]


SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]


# Which operands are batched is settled before any kernel runs, so one kernel tries all subsets.
@pytest.mark.parametrize(
    ("implementation", "subset"),
    [("loop", subset) for subset in SUBSETS]
    + [(name, SUBSETS[-1]) for name in IMPLEMENTATIONS[1:]],
)
def test_vmap_over_any_operands(implementation, subset):
    (x, w, sizes), cotangent, axes = batched(3, subset)

    def gradients(x, w, sizes, cotangent):
        y, pull = jax.vjp(
            lambda x, w: grouped_matmul(x, w, sizes, implementation=implementation), x, w
        )
        return y, *pull(cotangent)

    results = jax.jit(jax.vmap(gradients, in_axes=(*axes, 0)))(x, w, sizes, cotangent)
    for b in range(3):
        one = [a[b] if i in subset else a for i, a in enumerate((x, w, sizes))]
        for actual, bounded in zip(results, expected(*one, cotangent[b]), strict=True):
            np.testing.assert_array_equal(actual[b], bounded.value)


def test_gradient_of_a_vmap_sums_what_is_shared():
    (x, w, sizes), cotangent, axes = batched(3, (0, 2))

    def loss(x, w):
        return jnp.sum(cotangent * jax.vmap(grouped_matmul, axes)(x, w, sizes))

    dx, dw = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, w)
    wanted = [expected(x[b], w, sizes[b], cotangent[b]) for b in range(3)]
    np.testing.assert_array_equal(dx, [one[1].value for one in wanted])
    np.testing.assert_array_equal(dw, sum(one[2].value for one in wanted))


def test_vmap_twice():
    x, w, _ = integers(24, 3, 2, 4, np.float32)
    x, sizes = x.reshape(3, 8, 2), jnp.array(SIZES)
    over_sizes = jax.vmap(grouped_matmul, (None, None, 0))
    y = jax.vmap(over_sizes, (0, None, None))(x, jnp.asarray(w), sizes)
    for i, j in itertools.product(range(3), range(4)):
        wanted = expected(x[i], w, SIZES[j], np.zeros((8, 4), np.float32))
        np.testing.assert_array_equal(y[i, j], wanted[0].value)


def test_second_derivatives():
    x, w, _ = map(jnp.asarray, normal(8, 3, 2, 4, np.float64))
    sizes = jnp.array([3, 0, 4])

    def matmul(x, w):
        x, w = jnp.asarray(x), jnp.asarray(w)
        return grouped_matmul(x, w, sizes, implementation="loop")

    check_grads(matmul, (x, w), order=2, modes=["rev"])


@every_implementation
def test_second_derivatives_in_full(implementation):
    # Of f = sum((x w)^2) / 2 along v: the derivative of (y w^T, x^T y), with integers exact.
    x, w, v = integers(8, 3, 2, 2, np.float32)
    sizes = jnp.array([3, 0, 4])

    def loss(x, w):
        y = grouped_matmul(x, w, sizes, implementation=implementation)
        return jnp.sum(y * y) / 2

    def along(x, w):
        dx, dw = jax.grad(loss, argnums=(0, 1))(x, w)
        return jnp.sum(v * dx) + jnp.sum(w * dw)

    ddx, ddw = jax.jit(jax.grad(along, argnums=(0, 1)))(x, w)
    wanted_x, wanted_w = np.zeros_like(x), np.zeros_like(w)
    for e, mine in ((0, slice(0, 3)), (2, slice(3, 7))):
        a, b, u = x[mine], w[e], v[mine]
        # sum(w dw) = sum(y^2) = 2 f, and sum(v dx) = sum((v w) * (x w)).
        wanted_x[mine] = 2 * a @ b @ b.T + u @ b @ b.T
        wanted_w[e] = 2 * a.T @ a @ b + u.T @ a @ b + a.T @ u @ b
    np.testing.assert_array_equal(ddx, wanted_x)
    np.testing.assert_array_equal(ddw, wanted_w)


@every_implementation
def test_inside_shard_map(implementation):
    mesh = jax.make_mesh((1,), ("ep",), axis_types=(jax.sharding.AxisType.Auto,))
    split, shared = jax.P("ep"), jax.P()
    x, w, cotangent = integers(8, 3, 2, 4, np.float32)
    sizes = jnp.array([3, 0, 4])
    sharded = jax.shard_map(
        lambda x, w, sizes: grouped_matmul(x, w, sizes, implementation=implementation),
        mesh=mesh,
        in_specs=(split, shared, shared),
        out_specs=split,
    )

    def gradients(x, w):
        y, pull = jax.vjp(lambda x, w: sharded(x, w, sizes), x, w)
        return y, *pull(cotangent)

    wanted = expected(x, w, [3, 0, 4], cotangent)
    for actual, bounded in zip(jax.jit(gradients)(x, w), wanted, strict=True):
        np.testing.assert_array_equal(actual, bounded.value)


@every_implementation
def test_without_64_bit_numbers(implementation):
    x, w, cotangent = normal(16, 4, 64, 32, np.float32)
    with jax.enable_x64(False):
        results = run(x, w, [3, 0, 9, 2], cotangent, implementation=implementation)
        with pytest.raises(ValueError, match=r"`out_dtype` must be .*jax_enable_x64.*float64"):
            grouped_matmul(jnp.asarray(x), jnp.asarray(w), jnp.zeros(4, int), out_dtype="float64")
    assert_correct(results, expected(x, w, [3, 0, 9, 2], cotangent))


def test_blocked_takes_no_memory_that_grows_with_the_experts():
    rows, k, n = 256, 32, 32
    temporary = {}
    for experts in (16, 128):
        x, w, cotangent = normal(rows, experts, k, n, np.float32)
        sizes = jnp.full(experts, rows // experts)

        def gradients(x, w, sizes, cotangent):
            matmul = lambda x, w: grouped_matmul(x, w, sizes, implementation="blocked")  # noqa: E731
            y, pull = jax.vjp(matmul, x, w)
            return y, *pull(cotangent)

        program = jax.jit(gradients).lower(x, w, sizes, cotangent).compile()
        temporary[experts] = program.memory_analysis().temp_size_in_bytes
    one_matrix = 4 * k * n
    assert temporary[128] - temporary[16] < one_matrix
