"""The grouped matmul in plain NumPy float64, with what correct rounding may do to it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from moe_ref.grouped import grouped_matmul

HIGH = np.float64


class Bounded(NamedTuple):
    """A value and a bound on the error of anything that computes it correctly."""

    value: np.ndarray
    bound: np.ndarray


class Results(NamedTuple):
    """What is compared: the product and its gradients under a cotangent."""

    y: np.ndarray
    dx: np.ndarray
    dw: np.ndarray


def run(x, w, sizes, cotangent, *, implementation, out_dtype=None) -> Results:
    """Value and both gradients; one program per shape, dtype and implementation."""
    if out_dtype is None:
        out_dtype = x.dtype
    results = _run(
        jnp.asarray(x),
        jnp.asarray(w),
        jnp.asarray(sizes),
        jnp.asarray(cotangent),
        implementation=implementation,
        out_dtype=jnp.dtype(out_dtype),
    )
    return Results(*map(np.asarray, results))


def _value_and_gradients(x, w, sizes, cotangent, *, implementation, out_dtype):
    def matmul(x, w):
        return grouped_matmul(x, w, sizes, implementation=implementation, out_dtype=out_dtype)

    y, pull = jax.vjp(matmul, x, w)
    return y, *pull(cotangent)


_run = jax.jit(_value_and_gradients, static_argnames=("implementation", "out_dtype"))


def expected(x, w, sizes, cotangent, *, out_dtype=None) -> tuple[Bounded, Bounded, Bounded]:
    """`y`, `dx` and `dw`, one expert after the other over its rows alone."""
    out_dtype = x.dtype if out_dtype is None else np.dtype(out_dtype)
    sums = HIGH if HIGH in (x.dtype, out_dtype) else np.float32
    exact_x, exact_w, exact_ct = (np.asarray(a, HIGH) for a in (x, w, cotangent))
    y, dx, dw = (
        [np.zeros(shape), np.zeros(shape)] for shape in ((x.shape[0], w.shape[2]), x.shape, w.shape)
    )
    start = 0
    for e, size in enumerate(np.asarray(sizes).tolist()):
        mine = slice(start, start + size)
        start += size
        y[0][mine], y[1][mine] = _product(exact_x[mine], exact_w[e], sums)
        dx[0][mine], dx[1][mine] = _product(exact_ct[mine], exact_w[e].T, sums)
        if size:
            dw[0][e], dw[1][e] = _product(exact_x[mine].T, exact_ct[mine], sums)
    return (
        _rounded(*y, out_dtype),
        _rounded(*dx, x.dtype),
        _rounded(*dw, w.dtype),
    )


def _product(a, b, sums) -> tuple[np.ndarray, np.ndarray]:
    r"""$ab$ and $(\gamma_{n+2}(u) + \gamma_{n+2}(2^{-53})) |a| |b|$ plus flushed subnormals."""
    n = a.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.einsum("ik,kj->ij", a, b)
        magnitude = np.einsum("ik,kj->ij", np.abs(a), np.abs(b))
        bound = (_gamma(n + 2, sums) + _gamma(n + 2, HIGH)) * magnitude
    return value, bound + 2 * n * float(np.finfo(sums).tiny)


def _gamma(n: int, dtype) -> float:
    """Worst relative error of n roundings to nearest."""
    u = float(np.finfo(dtype).eps) / 2
    return n * u / (1 - n * u)


def _rounded(value, bound, dtype) -> Bounded:
    """One rounding to `dtype`: half a unit in the last place of the largest allowed value."""
    info = ml_dtypes.finfo(dtype)
    # A zero bound marks rows and matrices that no arithmetic touches: they stay exactly 0.
    touched = bound > 0
    largest = np.maximum(np.abs(value) + bound, float(info.tiny))
    with np.errstate(invalid="ignore"):
        half_ulp = float(info.eps) / 2 * 2.0 ** np.floor(np.log2(largest))
    return Bounded(value, np.where(touched, bound + half_ulp, 0.0))


def assert_within(actual: np.ndarray, wanted: Bounded) -> None:
    """Fail where the error exceeds the bound, or where the bound could not tell right from zero."""
    assert actual.shape == wanted.value.shape
    error = np.abs(np.asarray(actual, HIGH) - wanted.value)
    worst = np.unravel_index(np.argmax(error - wanted.bound), error.shape) if error.size else ()
    assert np.all(error <= wanted.bound), (
        f"at {worst}: got {actual[worst]}, wanted {wanted.value[worst]} +- {wanted.bound[worst]}"
    )
    touched = wanted.bound > 0
    if touched.any():
        deaf = np.abs(wanted.value) <= wanted.bound
        assert not deaf[touched].all(), "the bound exceeds the signal everywhere"


def assert_correct(results: Results, wanted: tuple[Bounded, Bounded, Bounded]) -> None:
    """Compare value and gradients."""
    for actual, bounded in zip(results, wanted, strict=True):
        assert_within(actual, bounded)


def normal(rows, experts, k, n, dtype, seed=0):
    """Normal x, w and cotangent."""
    rng = np.random.default_rng(seed)
    shapes = ((rows, k), (experts, k, n), (rows, n))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def integers(rows, experts, k, n, dtype, seed=0):
    """Integer x, w and cotangent, so small that every sum is exact in any order."""
    rng = np.random.default_rng(seed)
    shapes = ((rows, k), (experts, k, n), (rows, n))
    return tuple(rng.integers(1, 4, shape).astype(dtype) for shape in shapes)
