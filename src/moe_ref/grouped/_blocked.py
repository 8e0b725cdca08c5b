"""Blocks of rows in loops with dynamic trip counts: the cost follows the rows there are.

An outer loop visits the experts that have rows and reads each one's matrix once. The rows of an
expert are covered by whole blocks of the largest size and then one block just large enough for
what is left, so that a matmul of a fixed shape does little work in vain.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from moe_ref.grouped._groups import offsets, owned
from moe_ref.grouped._kernel import Kernel, dot, sum_dtype


def _rows(
    x: Float[Array, "rows a"],
    w: Float[Array, "experts k n"],
    group_sizes: Int32[Array, " experts"],
    *,
    transpose: bool,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "rows b"]:
    rows = x.shape[0]
    columns = w.shape[1 if transpose else 2]
    sums = sum_dtype(x.dtype, w.dtype, dtype)
    sizes = block_sizes(rows, w.shape[0])

    def expert(e, start, stop, y):
        matrix = lax.dynamic_index_in_dim(w, e, keepdims=False)
        if jax.default_backend() == "cpu":
            matrix = matrix.astype(sums)

        def block(size, first, y, *, whole):
            block_x, at, mine = _block(x, first, stop, size)
            product = dot(block_x, matrix, (1, 1 if transpose else 0), sums, precision)
            product = product.astype(dtype)
            if not whole:
                product = jnp.where(mine, product, lax.dynamic_slice_in_dim(y, at, size))
            return lax.dynamic_update_slice_in_dim(y, product, at, axis=0)

        whole, rest, choice = _cover(start, stop, sizes)
        y = lax.fori_loop(
            0, whole, lambda i, y: block(sizes[-1], start + i * sizes[-1], y, whole=True), y
        )
        # A loop of at most one trip for each size: XLA updates the carry of a loop in place, while
        # a `switch` over sizes copies all of `y` in some versions. The loop variable is the first
        # row, because a body that does not depend on it would be hoisted out and always run.
        for i, size in enumerate(sizes):
            y = lax.fori_loop(
                rest,
                rest + (choice == i).astype(jnp.int32),
                functools.partial(block, size, whole=False),
                y,
            )
        return y

    if x.size == 0 or w.size == 0:
        return lax.full_like(x, 0, dtype, (rows, columns))
    mask = owned(group_sizes, rows)[:, 0]
    return _visit(expert, group_sizes, rows, _unwritten(mask, x, dtype, columns))


def _weights(
    x: Float[Array, "rows k"],
    y: Float[Array, "rows n"],
    group_sizes: Int32[Array, " experts"],
    *,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "experts k n"]:
    rows, k = x.shape
    experts, n = group_sizes.shape[0], y.shape[1]
    sums = sum_dtype(x.dtype, y.dtype, dtype)
    sizes = block_sizes(rows, experts)

    def expert(e, start, stop, w):
        def block(size, first, *, whole):
            block_x, _, mine = _block(x, first, stop, size)
            block_y, _, _ = _block(y, first, stop, size)
            if not whole:
                block_x = jnp.where(mine, block_x, jnp.zeros_like(block_x))
                block_y = jnp.where(mine, block_y, jnp.zeros_like(block_y))
            return dot(block_x, block_y, (0, 0), sums, precision)

        whole, rest, choice = _cover(start, stop, sizes)
        branches = [functools.partial(block, size, whole=False) for size in sizes]
        total = lax.fori_loop(
            0,
            whole,
            lambda i, total: total + block(sizes[-1], start + i * sizes[-1], whole=True),
            lax.switch(choice, branches, rest),
        )
        return lax.dynamic_update_index_in_dim(w, total.astype(dtype), e, axis=0)

    if x.size == 0 or y.size == 0 or experts == 0:
        return lax.full_like(x, 0, dtype, (experts, k, n))
    starts, ends = offsets(group_sizes, rows)
    return _visit(expert, group_sizes, rows, _unwritten(starts < ends, x, dtype, k, n))


def block_sizes(rows: int, experts: int) -> tuple[int, ...]:
    """Ascending block sizes for groups of about `rows / experts` rows, none above `rows`."""
    if jax.default_backend() != "cpu":
        # Elsewhere every trip of a loop waits for the device, so a few large blocks win.
        return (min(128, rows),)
    # Dense around the mean, where most groups end; each size costs compile time in three products.
    mean = min(224, -(-rows // max(experts, 1)))
    sizes = {8 * max(1, -(-mean * eighths // 64)) for eighths in (2, 4, 6, 7, 8, 9, 10)}
    return tuple(sorted({min(size, rows) for size in sizes | {max(32, *sizes)}}))


def _cover(start, stop, sizes: tuple[int, ...]):
    """Whole blocks of the last size, first row of the rest, index of the size that holds it.

    The rest of a group that has rows is 1 to `sizes[-1]` rows.
    """
    whole = (stop - start - 1) // sizes[-1]
    rest = start + whole * sizes[-1]
    choice = jnp.sum(stop - rest > jnp.asarray(sizes[:-1], jnp.int32), dtype=jnp.int32)
    return whole, rest, choice


def _block(
    a: Float[Array, "rows d"], first: Int32[Array, ""], stop: Int32[Array, ""], size: int
) -> tuple[Float[Array, "{size} d"], Int32[Array, ""], Bool[Array, "{size} 1"]]:
    """A block that holds rows `first` to `stop`, where it begins, and which of its rows those are.

    Near the end of the array it begins before `first`, so as not to read past the last row.
    """
    at = jnp.minimum(first, a.shape[0] - size)
    row = at + jnp.arange(size, dtype=jnp.int32)
    mine = (row >= first) & (row < stop)
    return lax.dynamic_slice_in_dim(a, at, size), at, mine[:, None]


def _unwritten(
    written: Bool[Array, " results"], x: Float[Array, "rows k"], dtype: jnp.dtype, *shape: int
) -> Float[Array, "results ..."]:
    """A result with zeros where nothing will be written, and some number of `x` elsewhere.

    Zeros everywhere would do, but XLA makes one buffer of the equal zeros of several products and
    copies it for each.
    """
    any_number = x[:1, 0].astype(dtype)
    filled = jnp.where(written, any_number, jnp.zeros_like(any_number))
    return lax.broadcast_in_dim(filled, (filled.shape[0], *shape), (0,))


def _visit(expert, group_sizes: Int32[Array, " experts"], rows: int, carry: jax.Array) -> jax.Array:
    """Fold `expert(e, start, stop, carry)` over the experts that have rows, in order."""
    starts, ends = offsets(group_sizes, rows)
    empty = ends <= starts
    order = jnp.argsort(empty, stable=True).astype(jnp.int32)
    count = jnp.sum(~empty, dtype=jnp.int32)
    return lax.fori_loop(
        0, count, lambda i, c: expert(order[i], starts[order[i]], ends[order[i]], c), carry
    )


KERNEL = Kernel(_rows, _weights)
