"""Grouped matmuls that are right in value and wrong in gradient."""

import functools

import jax
import jax.numpy as jnp

from moe_ref.grouped import grouped_matmul

right = functools.partial(grouped_matmul, implementation="loop")


def _with_backward(change):
    @jax.custom_vjp
    def f(x, w, group_sizes):
        return right(x, w, group_sizes)

    def forward(x, w, group_sizes):
        return f(x, w, group_sizes), (x, w, group_sizes)

    def backward(residuals, dy):
        x, w, group_sizes = residuals
        pull = jax.vjp(lambda x, w: right(x, w, group_sizes), x, w)[1]
        return (*change(*pull(dy), x, w, group_sizes, dy), None)

    f.defvjp(forward, backward)
    return f


def _empty(group_sizes, dw):
    return jnp.broadcast_to((group_sizes == 0)[:, None, None], dw.shape)


def _tail(x, group_sizes):
    rows = jnp.arange(x.shape[0], dtype=jnp.int32)
    return (rows >= jnp.sum(group_sizes, dtype=jnp.int32))[:, None]


def _poisoned(flag, like):
    return jnp.where(flag, jnp.full_like(like, jnp.nan), like)


WRONG = {
    "no gradient of x": ("GRP-31", lambda dx, dw, *_: (jnp.zeros_like(dx), dw)),
    "no gradient of w": ("GRP-32", lambda dx, dw, *_: (dx, jnp.zeros_like(dw))),
    "twice the gradient of w": ("GRP-34", lambda dx, dw, *_: (dx, dw + dw)),
    "a row of dx is lost": ("GRP-33", lambda dx, dw, *_: (dx.at[:1].set(0), dw)),
    "dw of empty groups is stale": (
        "GRP-35",
        lambda dx, dw, x, w, sizes, dy: (
            dx,
            jnp.where(_empty(sizes, dw), jnp.ones_like(dw), dw),
        ),
    ),
    "the tail reaches dx": (
        "GRP-36",
        lambda dx, dw, x, w, sizes, dy: (
            _poisoned(jnp.any(_tail(x, sizes) & ~jnp.isfinite(x)), dx),
            dw,
        ),
    ),
    "the tail reaches dw": (
        "GRP-37",
        lambda dx, dw, x, w, sizes, dy: (
            dx,
            _poisoned(jnp.any(_tail(x, sizes) & ~jnp.isfinite(dy)), dw),
        ),
    ),
    "a NaN row reaches every dw": (
        "GRP-39",
        lambda dx, dw, x, w, sizes, dy: (dx, _poisoned(jnp.any(jnp.isnan(x)), dw)),
    ),
    "a NaN cotangent reaches every dx": (
        "GRP-40",
        lambda dx, dw, x, w, sizes, dy: (_poisoned(jnp.any(jnp.isnan(dy)), dx), dw),
    ),
    "a NaN weight reaches every dx": (
        "GRP-41",
        lambda dx, dw, x, w, sizes, dy: (_poisoned(jnp.any(jnp.isnan(w)), dx), dw),
    ),
    "a NaN weight reaches dw": (
        "GRP-42",
        lambda dx, dw, x, w, sizes, dy: (dx, _poisoned(jnp.any(jnp.isnan(w)), dw)),
    ),
}


def wrong(fault: str):
    return _with_backward(WRONG[fault][1])
