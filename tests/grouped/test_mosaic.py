"""The Hopper kernels without a Hopper: interpreted at small sizes, lowered at real ones."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import PartitionSpec as P

from grouped.reference import Bounded, assert_correct, assert_within, expected, normal, run
from moe_ref.grouped import _mosaic, grouped_matmul
from moe_ref.grouped._mosaic_rows import schedule

BF16 = ml_dtypes.bfloat16

interpreted = pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of such kernels"
)


@pytest.fixture(autouse=True)
def as_on_a_hopper(monkeypatch):
    if hasattr(plgpu, "InterpretGPUParams"):
        monkeypatch.setattr(_mosaic, "INTERPRET", plgpu.InterpretGPUParams())
    else:
        monkeypatch.setattr(_mosaic, "hopper", lambda: True)


def poisoned(rows, sizes, k, n, dtype):
    """Operands with NaN in the tail and in the matrices of empty groups."""
    x, w, cotangent = normal(rows, len(sizes), k, n, dtype)
    x[sum(sizes) :] = np.nan
    cotangent[sum(sizes) :] = np.nan
    w[np.asarray(sizes) == 0] = np.nan
    return x, w, cotangent


@interpreted
@pytest.mark.parametrize(
    ("rows", "sizes", "k", "n"),
    [
        pytest.param(280, [0, 130, 0, 65, 7, 64, 1, 0], 128, 192, id="groups begin off a tile"),
        pytest.param(101, [3, 0, 90], 72, 40, id="sizes that copies do not take"),
        pytest.param(8, [0, 0], 64, 64, id="all rows are tail"),
    ],
)
def test_within_the_bound_and_contained(rows, sizes, k, n):
    x, w, cotangent = poisoned(rows, sizes, k, n, BF16)
    results = run(x, w, sizes, cotangent, implementation="mosaic")
    clean = [np.where(np.isnan(a), np.zeros_like(a), a) for a in (x, w, cotangent)]
    assert_correct(results, expected(clean[0], clean[1], sizes, clean[2]))


@interpreted
def test_a_nan_reaches_its_row_and_its_group_alone():
    sizes = [33, 30, 64]
    x, w, cotangent = normal(136, 3, 64, 64, np.float16)
    x[40], cotangent[40] = np.nan, np.nan
    results = run(x, w, sizes, cotangent, implementation="mosaic")
    kept = np.arange(136) != 40
    clean = [np.where(kept[:, None], a, np.zeros_like(a)) for a in (x, cotangent)]
    y, dx, dw = expected(clean[0], w, sizes, clean[1])
    for rows, wanted in ((results.y, y), (results.dx, dx)):
        assert np.isnan(rows[40]).all()
        assert_within(rows[kept], Bounded(wanted.value[kept], wanted.bound[kept]))
    assert np.isnan(results.dw[1]).all()
    assert_within(results.dw[[0, 2]], Bounded(dw.value[[0, 2]], dw.bound[[0, 2]]))


def unrounded(precision):
    """A cotangent of float32 beside operands of bfloat16, and the gradients."""
    x, w, _ = normal(72, 2, 64, 64, BF16)
    cotangent = np.random.default_rng(1).standard_normal((72, 64)).astype(np.float32)
    w[0, 3, 5], cotangent[7] = np.inf, 1 / 3

    def matmul(x, w):
        return grouped_matmul(
            x,
            w,
            jnp.array([40, 25]),
            implementation="mosaic",
            out_dtype="float32",
            precision=precision,
        )

    pull = jax.vjp(matmul, jnp.asarray(x), jnp.asarray(w))[1]
    return cotangent, *(np.asarray(a) for a in pull(jnp.asarray(cotangent)))


# Infinity times zero, in the interpreter's own matmul.
times_zero = pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")


@interpreted
@times_zero
def test_a_cotangent_that_was_not_rounded_counts_in_full():
    cotangent, dx, dw = unrounded("highest")
    x, w, _ = normal(72, 2, 64, 64, BF16)
    *_, wanted = expected(x, w, [40, 25], cotangent, out_dtype=np.float32)
    assert_within(dw, wanted)
    assert dx[7, 3] == np.inf  # and not NaN, as the terms alone would make it


@interpreted
@pytest.mark.parametrize(("precision", "whole"), [("HIGH", False), ("HIGHEST", True)])
def test_three_terms_bring_every_bit_through_an_identity(precision, whole):
    """In a result of float32: what a gradient of bfloat16 is rounded to hides the third term."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    y = _mosaic.KERNEL.rows(
        jnp.asarray(x),
        jnp.eye(64, dtype=jnp.bfloat16)[None],
        jnp.array([64], jnp.int32),
        transpose=False,
        dtype=jnp.dtype("float32"),
        precision=jax.lax.Precision[precision],
    )
    assert (np.asarray(y) == x).all() == whole


@interpreted
@times_zero
def test_at_default_precision_the_cotangent_is_rounded():
    cotangent, _, dw = unrounded("default")
    x, w, _ = normal(72, 2, 64, 64, BF16)
    rounded = cotangent.astype(BF16).astype(np.float32)
    assert_within(dw, expected(x, w, [40, 25], rounded, out_dtype=np.float32)[2])


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("value", [1 / 3, -3.3e38, 3.4e38, 1e-30, np.inf, np.nan, 0.0])
def test_terms_sum_to_the_number(value, jitted):
    def terms(number):
        return _mosaic._terms(number, jnp.dtype(BF16), jax.lax.Precision.HIGHEST)

    number = jnp.float32(value)
    found = (jax.jit(terms) if jitted else terms)(number)
    assert len(found) == 3
    total = np.sum([np.asarray(term, np.float64) for term in found])
    np.testing.assert_array_equal(total, np.float64(number))


def test_terms_are_not_conversions_that_a_compiler_takes_away():
    def terms(number):
        return _mosaic._terms(number, jnp.dtype(BF16), jax.lax.Precision.HIGHEST)

    equations = jax.make_jaxpr(terms)(jnp.ones((), jnp.float32)).jaxpr.eqns
    assert [e.primitive.name for e in equations].count("reduce_precision") == 3
    assert not any(str(v.aval.dtype) == "bfloat16" for e in equations for v in e.invars)


@pytest.mark.parametrize("height", [64, 128])
@pytest.mark.parametrize(
    "sizes", [[0, 0], [5, 0, 300, 1], [128, 128], [127, 129, 0], [300, 0, 0, 0], [1] * 64]
)
def test_the_schedule_covers_every_row_once_with_its_own_group(sizes, height):
    rows = 320
    group, start, first, end, total = (
        np.asarray(a) for a in schedule(jnp.asarray(sizes, jnp.int32), rows, height)
    )
    assert total[0] <= group.size
    owner = np.full(rows, -1)
    for tile in range(total[0]):
        assert start[tile] % 8 == 0
        assert start[tile] <= first[tile] < end[tile] <= start[tile] + height
        assert (owner[first[tile] : end[tile]] == -1).all()
        owner[first[tile] : end[tile]] = group[tile]
    tail = rows - sum(sizes)
    assert owner.tolist() == np.repeat(np.arange(len(sizes) + 1), [*sizes, tail]).tolist()


# Sizes of published layers, and the dtypes that a layer multiplies with and without rounding.
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("rows", "experts", "k", "n"), [(4096, 256, 7168, 2048), (999, 8, 2880, 5760)]
)
def test_lowers_for_cuda_at_real_sizes(monkeypatch, rows, experts, k, n, out_dtype):
    monkeypatch.setattr(_mosaic, "INTERPRET", None)
    monkeypatch.setattr(_mosaic, "hopper", lambda: True)
    matmul = functools.partial(grouped_matmul, implementation="mosaic", out_dtype=out_dtype)

    def loss(x, w, sizes):
        return jnp.sum(matmul(x, w, sizes).astype(jnp.float32))

    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    sizes = jax.ShapeDtypeStruct((experts,), jnp.int32)
    jax.clear_caches()
    traced = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).trace(
        shape((rows, k)), shape((experts, k, n)), sizes
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    # Rounded once: value, dx and dw. A float32 cotangent has three terms in dx and in dw.
    assert text.count("@mosaic_gpu") == {"bfloat16": 3, "float32": 7}[out_dtype]


def test_results_in_shard_map_vary_over_the_axes_that_operands_vary_over(monkeypatch):
    monkeypatch.setattr(_mosaic, "INTERPRET", None)
    monkeypatch.setattr(_mosaic, "hopper", lambda: True)
    mesh = jax.make_mesh((1,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    seen = []

    def local(x, w, sizes):
        def matmul(x, w):
            return grouped_matmul(x, w, sizes, implementation="mosaic", out_dtype="float32")

        y, pull = jax.vjp(matmul, x, w)
        results = (y, *pull(y))
        seen.extend(jax.typeof(a).mat.varying for a in results)
        return results

    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    sharded = jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))
    sizes = jax.ShapeDtypeStruct((2,), jnp.int32)
    jax.jit(sharded).trace(shape((64, 128)), shape((2, 128, 128)), sizes)
    assert seen == [{"expert"}] * 3


def test_elsewhere_it_is_refused_by_name(monkeypatch):
    monkeypatch.undo()
    jax.clear_caches()
    x, w, _ = normal(8, 2, 64, 64, BF16)
    with pytest.raises(ValueError, match="`implementation` must be another than 'mosaic'"):
        grouped_matmul(jnp.asarray(x), jnp.asarray(w), jnp.array([3, 4]), implementation="mosaic")
