"""The grouped matmul on MX operands against the oracle, on data of many powers of two."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import mx, oracle
from mx.data import as_float32

WGRAD = ("high_precision_source", "requantize", "high_precision_matmul")
SIZES = {
    "ragged": [5, 0, 65, 3],
    "whole blocks": [32, 32, 0, 0],
    "none": [0, 0, 0, 0],
    "one has all": [0, 80, 0, 0],
}
ROWS, K, N = 80, 40, 48


def draw(dtype=np.float32, seed=0):
    """x, w and cotangent whose elements span 2^12 up and down; the tail of x is NaN in use."""
    rng = np.random.default_rng(seed)
    shapes = (ROWS, K), (4, K, N), (ROWS, N)
    return tuple(
        (rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 13, shape)).astype(dtype)
        for shape in shapes
    )


@functools.partial(jax.jit, static_argnames=("format", "rule", "wgrad", "implementation"))
def _run(x, w, sizes, cotangent, **options):
    y, pull = jax.vjp(lambda x, w: mx.grouped_matmul_mx(x, w, sizes, **options), x, w)
    return (y, *pull(cotangent))


def run(x, w, sizes, cotangent, **options):
    # The implementation of the matmul that compiles fastest.
    options = {"implementation": "loop"} | options
    return _run(*map(jnp.asarray, (x, w, sizes, cotangent)), **options)


def expected(x, w, sizes, cotangent, wgrad="high_precision_source", **form):
    gradients = oracle.grouped_matmul_mx_vjp(x, w, sizes, cotangent, wgrad=wgrad, **form)
    return oracle.grouped_matmul_mx(x, w, sizes, **form), gradients.x, gradients.w


def taken(actual, wanted):
    """The largest part of the bound that an error takes."""
    return max(float(oracle.ratio(a, o.value, o.bound).max()) for a, o in zip(actual, wanted))


@pytest.mark.parametrize("wgrad", WGRAD)
@pytest.mark.parametrize("sizes", SIZES)
def test_value_and_gradients(sizes, wgrad):
    sizes = SIZES[sizes]
    x, w, cotangent = draw()
    x[sum(sizes) :] = np.nan
    cotangent[sum(sizes) :] = np.inf
    actual = run(x, w, sizes, cotangent, wgrad=wgrad)
    wanted = expected(x, w, sizes, cotangent, wgrad)
    assert taken(actual, wanted) <= 1
    for e, size in enumerate(sizes):
        assert size or not np.asarray(actual[2][e]).any()


def test_bfloat16():
    x, w, cotangent = draw(ml_dtypes.bfloat16)
    actual = run(x, w, SIZES["ragged"], cotangent)
    assert all(a.dtype == jnp.bfloat16 for a in actual)
    assert taken(actual, expected(x, w, SIZES["ragged"], cotangent)) <= 1


def test_another_format_and_rule():
    x, w, cotangent = draw()
    form = {"format": "mxfp4_e2m1", "rule": "floor"}
    actual = run(x, w, SIZES["ragged"], cotangent, **form)
    assert taken(actual, expected(x, w, SIZES["ragged"], cotangent, **form)) <= 1
    other = expected(x, w, SIZES["ragged"], cotangent, format="mxfp4_e2m1", rule="ceil")
    assert taken(actual, other) > 1


@pytest.mark.parametrize("wgrad", WGRAD)
def test_the_choices_for_the_weight_gradient_are_told_apart(wgrad):
    x, w, cotangent = draw()
    actual = run(x, w, SIZES["ragged"], cotangent, wgrad=wgrad)
    for other in set(WGRAD) - {wgrad}:
        assert taken(actual, expected(x, w, SIZES["ragged"], cotangent, other)) > 1


def _back(a, axis, block=32):
    q = oracle.quantize(a, "mxfp8_e4m3", axis=axis, block=block)
    return as_float32(oracle.dequantize(q.elements, q.scales, "mxfp8_e4m3", axis=axis, block=block))


def _wrong(name, x, w, sizes, cotangent):
    """y, dx and dw of a kernel with one fault, in float64."""
    x_k, w_k, w_n, g_n = _back(x, -1), _back(w, 1), _back(w, -1), _back(cotangent, -1)
    used = sum(sizes)
    x_t, g_t = np.zeros_like(x), np.zeros_like(cotangent)
    for a, full in ((x_t, x), (g_t, cotangent)):
        if name == "blocks across groups":
            a[:used] = _back(full[:used], 0)
        else:
            for start, size in zip(np.cumsum([0, *sizes]), sizes):
                if size:
                    a[start : start + size] = _back(full[start : start + size], 0)
    if name == "forward blocks in the backward pass":
        w_n = w_k
    if name == "blocks along the other axis":
        w_k = w_n
    if name == "quantised twice":
        x_k = _back(_back(x, 0), -1)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    wide = [a.astype(np.float64) for a in (x_k, w_k, w_n, g_n, x_t, g_t)]
    x_k, w_k, w_n, g_n, x_t, g_t = wide
    y, dx, dw = np.zeros(cotangent.shape), np.zeros(x.shape), np.zeros(w.shape)
    for e in range(len(sizes)):
        mine = np.flatnonzero(owner == e)
        y[mine], dx[mine] = x_k[mine] @ w_k[e], g_n[mine] @ w_n[e].T
        dw[e] = x_t[mine].T @ g_t[mine]
    return y, dx, dw


FAULTS = (
    "blocks across groups",
    "forward blocks in the backward pass",
    "blocks along the other axis",
    "quantised twice",
)


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_faults_exceed_the_bound(fault):
    x, w, cotangent = draw()
    wanted = expected(x, w, SIZES["ragged"], cotangent)
    wrong = _wrong(fault, x, w, SIZES["ragged"], cotangent)
    assert (taken(wrong, wanted) > 1) == (fault is not None)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_reaches_its_own_results(poison):
    sizes = [5, 0, 65, 3]
    x, w, cotangent = draw()
    before = run(x, w, sizes, cotangent)
    x[7, 3] = poison
    after = run(x, w, sizes, cotangent)
    reached = [np.zeros(np.shape(a), bool) for a in after]
    reached[0][7] = True
    reached[2][2, 3] = True
    for a, b, hit in zip(before, after, reached):
        np.testing.assert_array_equal(np.asarray(a)[~hit], np.asarray(b)[~hit])
        assert not np.isfinite(np.asarray(b)[hit]).any()


def test_eager():
    x, w, cotangent = draw()
    sizes = SIZES["ragged"]
    y = mx.grouped_matmul_mx(*map(jnp.asarray, (x, w, sizes)))
    assert taken([y], expected(x, w, sizes, cotangent)[:1]) <= 1


def test_second_order_is_refused():
    x, w, cotangent = (jnp.asarray(a) for a in draw())

    def loss(x):
        return jnp.sum(run(x, w, SIZES["ragged"], cotangent)[2])

    with pytest.raises(ValueError, match="no gradient of its gradient"):
        jax.grad(loss)(x)


WRONG = {
    "float64": ({"x": np.ones((4, 32))}, "`x.dtype` must be one of"),
    "w": ({"w": np.ones((2, 32, 3), ml_dtypes.bfloat16)}, "`w.dtype` must be x.dtype=float32"),
    "k": ({"w": np.ones((2, 31, 3), np.float32)}, "`w` must be"),
    "out_dtype": ({"out_dtype": jnp.float64}, "`out_dtype` must be one of"),
    "format": ({"format": "fp8"}, "`format` must be one of"),
    "rule": ({"rule": "log2"}, "`rule` must be one of"),
    "nonfinite": ({"nonfinite": "inf"}, "`nonfinite` must be one of"),
    "wgrad": ({"wgrad": "double"}, "`wgrad` must be one of"),
    "implementation": ({"implementation": "fast"}, "`implementation` must be one of"),
    "sizes": ({"group_sizes": np.array([3, 4])}, "`group_sizes` must be at most rows=4 in sum"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(case):
    changed, message = WRONG[case]
    given = {
        "x": np.ones((4, 32), np.float32),
        "w": np.ones((2, 32, 3), np.float32),
        "group_sizes": np.array([1, 2]),
    } | changed
    arrays = {name: jnp.asarray(given.pop(name)) for name in ("x", "w", "group_sizes")}
    with pytest.raises(ValueError, match=message):
        mx.grouped_matmul_mx(*arrays.values(), **given)


@pytest.mark.parametrize("sizes", [[40, 40], [-1, 5]])
def test_impossible_sizes_that_can_be_seen(sizes):
    with pytest.raises(ValueError, match="`group_sizes` must be "):
        mx.grouped_matmul_mx(
            jnp.ones((64, 32), "float32"), jnp.ones((2, 32, 8), "float32"), jnp.array(sizes)
        )


def test_no_experts():
    x, w = jnp.ones((3, 32), jnp.float32), jnp.ones((0, 32, 64), jnp.float32)
    sizes, cotangent = jnp.zeros(0, jnp.int32), jnp.ones((3, 64), jnp.float32)
    y, pull = jax.vjp(lambda x, w: mx.grouped_matmul_mx(x, w, sizes), x, w)
    truth = oracle.grouped_matmul_mx_vjp(x, w, sizes, cotangent)
    assert np.array_equal(y, oracle.grouped_matmul_mx(x, w, sizes).value)
    assert mx.aligned_rows(sizes, rows=3, alignment=32).tolist() == [0, 0, 0]
    for found, expected in zip(pull(cotangent), (truth.x, truth.w), strict=True):
        assert np.array_equal(found, expected.value)
