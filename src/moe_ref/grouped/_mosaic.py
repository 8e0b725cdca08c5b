"""Hopper's tensor cores through Pallas Mosaic GPU: operands of 16 bits, sums in float32.

Here is what they take and how others are brought to that; the kernels are in `_mosaic_rows.py` and
`_mosaic_weights.py`. Pallas is imported when a kernel is first traced: it is slow to import, and
not every platform has it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from moe_ref._device import gpu_capability, on_gpu, varying_as_operands
from moe_ref._errors import require
from moe_ref.grouped import _blocked
from moe_ref.grouped._kernel import Kernel

# Parameters of Pallas' interpreter, for tests on machines without such a GPU.
INTERPRET: Any = None

_NARROW = ("bfloat16", "float16")
# What the kernels copy: rows by tiles of 8, columns by lines of 64, and two of each at least.
# Larger copies of an array of one tile or line brought zeros on an H200 with JAX 0.11.
_ROWS, _COLUMNS = 8, 64


def _rows(
    x: Float[Array, "rows a"],
    w: Float[Array, "experts k n"],
    group_sizes: Int32[Array, " experts"],
    *,
    transpose: bool,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "rows b"]:
    _require_hopper()
    elsewhere = functools.partial(
        _blocked.KERNEL.rows, transpose=transpose, dtype=dtype, precision=precision
    )
    if not _takes(dtype, x, w) or str(w.dtype) not in _NARROW:
        return elsewhere(x, w, group_sizes)

    def here(x, w, group_sizes):
        from moe_ref.grouped import _mosaic_pipeline, _mosaic_rows

        columns = w.shape[1 if transpose else 2]
        terms = _terms(x, w.dtype, precision)
        result = _sum_dtype(dtype, terms)
        # Of the tiles in benchmarks/results/tiles-h200.json the best or within 3% at all shapes.
        tiles = _mosaic_pipeline.Tiles(128, 256, 64, 4 if result.itemsize == 2 else 3, 8)
        w = _pad(w, (1, _COLUMNS, _COLUMNS))
        products = [
            _mosaic_rows.rows(
                _pad(term, (_ROWS, _COLUMNS)),
                w,
                group_sizes,
                transpose=transpose,
                dtype=result,
                tiles=tiles,
                interpret=INTERPRET,
            )
            for term in terms
        ]
        return _sum(products)[: x.shape[0], :columns].astype(dtype)

    return _where_it_runs(here, elsewhere, x, w, group_sizes)


def _weights(
    x: Float[Array, "rows k"],
    y: Float[Array, "rows n"],
    group_sizes: Int32[Array, " experts"],
    *,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "experts k n"]:
    _require_hopper()
    elsewhere = functools.partial(_blocked.KERNEL.weights, dtype=dtype, precision=precision)
    if not _takes(dtype, x, y):
        return elsewhere(x, y, group_sizes)

    def here(x, y, group_sizes):
        from moe_ref.grouped import _mosaic_pipeline, _mosaic_weights

        tiles = _mosaic_pipeline.Tiles(256, 128, 64, 4, 8)  # as above
        narrow = min(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
        pairs = [
            (left, right)
            for left in _terms(x, narrow, precision)
            for right in _terms(y, narrow, precision)
        ]
        products = [
            _mosaic_weights.weights(
                _pad(left, (_ROWS, _COLUMNS)),
                _pad(right, (_ROWS, _COLUMNS)),
                group_sizes,
                dtype=_sum_dtype(dtype, pairs),
                tiles=tiles,
                interpret=INTERPRET,
            )
            for left, right in pairs
        ]
        return _sum(products)[:, : x.shape[1], : y.shape[1]].astype(dtype)

    return _where_it_runs(here, elsewhere, x, y, group_sizes)


def _where_it_runs(here, elsewhere, *operands: Array) -> Array:
    if INTERPRET is not None:
        return varying_as_operands(here)(*operands)
    return on_gpu(here, elsewhere, *operands)


def _takes(dtype: jnp.dtype, *operands: Array) -> bool:
    """Whether the kernels multiply these operands; if not, the blocks of rows do.

    A float32 factor (a cotangent that was not rounded) beside a bfloat16 one is a sum of bfloat16
    terms; float16 has not the range for it.
    """
    dtypes = {str(each.dtype) for each in operands}
    same = len(dtypes) == 1 and dtypes <= set(_NARROW)
    mixed = dtypes == {"bfloat16", "float32"}
    return (same or mixed) and dtype.itemsize <= 4 and all(each.size for each in operands)


def _terms(a: Array, dtype: jnp.dtype, precision: lax.Precision) -> list[Array]:
    """Terms of a narrow dtype whose sum is `a`: as many as the precision asks for.

    One holds 8 bits of a float32 number, two 16, and three all 24 but what is below the subnormal
    numbers. Infinities and NaNs are in the first.
    """
    if a.dtype == dtype:
        return [a]
    number = {lax.Precision.DEFAULT: 1, lax.Precision.HIGH: 2, lax.Precision.HIGHEST: 3}[precision]
    info = jnp.finfo(dtype)
    most = info.max.astype(a.dtype)
    terms, rest = [], a
    for nth in range(number):
        if number > 1 and nth == 0:  # what is near the largest number must not become infinite
            rest = jnp.where(jnp.isfinite(a), jnp.clip(a, -most, most), a)
        # Not a conversion there and back: XLA takes such a pair away on a GPU.
        near = lax.reduce_precision(rest, info.nexp, info.nmant)
        terms.append(near.astype(dtype))
        before = a if nth == 0 else rest
        rest = jnp.where(jnp.isfinite(a), before - near, 0)
    return terms


def _sum(products: list[Array]) -> Array:
    """Sum of the products of terms; where the first is not finite, that is the result."""
    first = products[0]
    if len(products) == 1:
        return first
    return jnp.where(jnp.isfinite(first), sum(products[1:], first), first)


def _sum_dtype(dtype: jnp.dtype, terms: list) -> jnp.dtype:
    """Dtype of a product that is the result, or that is summed with others and then rounded."""
    return dtype if len(terms) == 1 else jnp.dtype(jnp.float32)


def _pad(a: Array, multiples: tuple[int, ...]) -> Array:
    """Add zeros up to a multiple of each size, above 1 the second at least; a copy, if any miss."""
    sizes = zip(a.shape, multiples, strict=True)
    missing = [
        -size % multiple if size > multiple or multiple == 1 else 2 * multiple - size
        for size, multiple in sizes
    ]
    return jnp.pad(a, [(0, more) for more in missing]) if any(missing) else a


def _require_hopper() -> None:
    require(
        hopper() or INTERPRET is not None,
        "implementation",
        "another than 'mosaic' except on an NVIDIA GPU of compute capability 9.0 (and with "
        "absl-py, for JAX 0.10)",
        jax.devices()[0].device_kind,
    )


def hopper() -> bool:
    """Whether arrays go to an NVIDIA GPU of compute capability 9.0 if nobody says where.

    JAX must have the compiler of such kernels as well; that of 0.10 is not there without absl-py.
    """
    return gpu_capability() == (9, 0) and _importable()


@functools.cache
def _importable() -> bool:
    try:
        from jax.experimental.pallas import mosaic_gpu  # noqa: F401
    except ImportError:
        return False
    return True


KERNEL = Kernel(_rows, _weights)
