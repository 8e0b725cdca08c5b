"""Hopper's tensor cores through Pallas Mosaic GPU: operands of 16 bits, sums in float32.

Here is what they take and how others are brought to that; the kernels are in `_mosaic_rows.py` and
`_mosaic_weights.py`. Pallas is imported when a kernel is first traced: it is slow to import, and
not every platform has it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

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
    rows, columns = x.shape[0], w.shape[1 if transpose else 2]
    if not _takes(x, w, dtype):
        return _blocked.KERNEL.rows(
            x, w, group_sizes, transpose=transpose, dtype=dtype, precision=precision
        )
    from moe_ref.grouped import _mosaic_pipeline, _mosaic_rows

    w = _pad(w, (1, _COLUMNS, _COLUMNS))
    terms = _terms(x, w.dtype, precision)
    result = _sum_dtype(dtype, terms)
    # Best of what was measured on an H200 at all of 8 to 256 groups of 128 to 2048 rows: tiles of
    # 64 rows are 7 to 40% slower, strips of 2 or 28 tiles up to 3 and 8%.
    tiles = _mosaic_pipeline.Tiles(128, 256, 64, 4 if result.itemsize == 2 else 3, 8)
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
    return sum(products[1:], products[0])[:rows, :columns].astype(dtype)


def _weights(
    x: Float[Array, "rows k"],
    y: Float[Array, "rows n"],
    group_sizes: Int32[Array, " experts"],
    *,
    dtype: jnp.dtype,
    precision: lax.Precision,
) -> Float[Array, "experts k n"]:
    _require_hopper()
    k, n = x.shape[1], y.shape[1]
    if not _takes(x, y, dtype):
        return _blocked.KERNEL.weights(x, y, group_sizes, dtype=dtype, precision=precision)
    from moe_ref.grouped import _mosaic_pipeline, _mosaic_weights

    # As above: 128 x 256 is 1 to 9% slower, and 256 x 192 spills registers.
    tiles = _mosaic_pipeline.Tiles(256, 128, 64, 4, 8)
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
    return sum(products[1:], products[0])[:, :k, :n].astype(dtype)


def _takes(a: Array, b: Array, dtype: jnp.dtype) -> bool:
    """Whether the kernels multiply these operands; if not, the blocks of rows do.

    A float32 factor (a cotangent that was not rounded) beside a bfloat16 one is a sum of bfloat16
    terms; float16 has not the range for it.
    """
    dtypes = {str(a.dtype), str(b.dtype)}
    same = len(dtypes) == 1 and dtypes <= set(_NARROW)
    mixed = dtypes == {"bfloat16", "float32"}
    return (same or mixed) and dtype.itemsize <= 4 and a.size > 0 and b.size > 0


def _terms(a: Array, dtype: jnp.dtype, precision: lax.Precision) -> list[Array]:
    """Terms of a narrow dtype whose sum is `a`: as many as the precision asks for.

    One holds 8 bits of a float32 number, two 16, and three all 24. Infinities and NaNs are in the
    first alone.
    """
    if a.dtype == dtype:
        return [a]
    number = {lax.Precision.DEFAULT: 1, lax.Precision.HIGH: 2, lax.Precision.HIGHEST: 3}[precision]
    most = jnp.finfo(dtype).max.astype(a.dtype)
    terms, rest = [], a
    for _ in range(number):
        near = jnp.where(jnp.isfinite(rest), jnp.clip(rest, -most, most), rest)
        terms.append(near.astype(dtype))
        rest = jnp.where(jnp.isfinite(rest), rest - terms[-1].astype(a.dtype), 0)
    return terms


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
        "another than 'mosaic' except on an NVIDIA GPU of compute capability 9.0",
        jax.devices()[0].device_kind,
    )


def hopper() -> bool:
    """Whether the default device is an NVIDIA GPU of compute capability 9.0."""
    device = jax.devices()[0]
    return device.platform == "gpu" and getattr(device, "compute_capability", "") == "9.0"


KERNEL = Kernel(_rows, _weights)
