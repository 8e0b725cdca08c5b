"""`moe_ref.mx.quantize` and `dequantize` beside a copy and what others do, on 64 MiB.

Run alone with `python -m benchmarks mx`. E4M3, `rceil`, blocks of 32 along rows. Threads, pages and
other programs disturb single calls, so the runs take turns and the smallest time counts.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from benchmarks.measure import interleaved
from benchmarks.real_kernels import jax_quantize
from moe_ref import mx

TITLE = "MX quantisation of 64 MiB, E4M3, rceil, smallest of interleaved runs"
BYTES = 1 << 26
COLUMNS = 4096
BLOCK = 32
LARGEST = 448.0


def floats(x):
    """How people write it: right for data that is far from subnormal and finite."""
    blocks = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, BLOCK)
    amax = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    exponent = jnp.clip(jnp.ceil(jnp.log2(amax / LARGEST)), -127, 127)
    scaled = jnp.clip(blocks / jnp.exp2(exponent), -LARGEST, LARGEST)
    elements = scaled.astype(jnp.float8_e4m3fn).reshape(x.shape)
    return elements, (exponent[..., 0] + 127).astype(jnp.uint8)


def floats_back(elements, scales, dtype):
    """The values, by a multiplication."""
    blocks = elements.astype(jnp.float32).reshape(*scales.shape, BLOCK)
    factor = jnp.exp2(scales.astype(jnp.float32) - 127)
    return (blocks * factor[..., None]).reshape(elements.shape).astype(dtype)


def in_numpy(x):
    """The same with NumPy and ml_dtypes."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    amax = np.abs(blocks).max(-1, keepdims=True)
    fraction, exponent = np.frexp(amax / LARGEST)
    exponent = np.clip(exponent - (fraction == 0.5), -127, 127)
    scaled = np.clip(np.ldexp(blocks, -exponent), -LARGEST, LARGEST)
    elements = scaled.astype(ml_dtypes.float8_e4m3fn).reshape(x.shape)
    return elements, (exponent[..., 0] + 127).astype(np.uint8)


def in_numpy_back(elements, scales, dtype):
    """The values, with NumPy and ml_dtypes."""
    blocks = elements.astype(np.float32).reshape(*scales.shape, BLOCK)
    values = np.ldexp(blocks, scales[..., None].astype(np.int32) - 127)
    return values.reshape(elements.shape).astype(dtype)


def _copy(x):
    """Every byte read and written once, one operation a value."""
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")) ^ 1


def _wait(function: Callable, *arguments) -> Callable[[], object]:
    return lambda: jax.block_until_ready(function(*arguments))


def _same(q: mx.Quantized, elements, scales) -> None:
    """The benchmark is worth nothing unless all compute the same bytes."""
    assert np.array_equal(q.elements, np.asarray(elements).view(np.uint8))
    assert np.array_equal(q.scales, np.asarray(scales).view(np.uint8))


def measure(dtype: str, *, repeats: int = 15) -> list[dict]:
    """One row for each direction: times in ms, and times faster than floats."""
    size = BYTES // jnp.dtype(dtype).itemsize
    values = np.random.default_rng(0).standard_normal((size // COLUMNS, COLUMNS), np.float32)
    x = jnp.asarray(values).astype(dtype)
    host = np.asarray(x)
    quantized = mx.quantize(x, "mxfp8_e4m3", axis=-1)
    codes = lax.bitcast_convert_type(quantized.elements, jnp.float8_e4m3fn)
    host_codes, host_scales = np.asarray(codes), np.asarray(quantized.scales)
    quantize, back = jax.jit(floats), jax.jit(floats_back, static_argnums=2)
    for others in (quantize(x), jax_quantize.function(x), in_numpy(host)):
        _same(quantized, *others)
    assert np.array_equal(quantized.dequantize(x.dtype), back(codes, quantized.scales, dtype))
    runs = {
        "quantize": {
            "moe_ref": _wait(lambda: mx.quantize(x, "mxfp8_e4m3", axis=-1)),
            "copy": _wait(jax.jit(_copy), x),
            "floats": _wait(quantize, x),
            "jax": _wait(jax_quantize.function, x),
            "NumPy": lambda: in_numpy(host),
        },
        "dequantize": {
            "moe_ref": _wait(lambda: quantized.dequantize(x.dtype)),
            "copy": _wait(jax.jit(_copy), x),
            "floats": _wait(lambda: back(codes, quantized.scales, dtype)),
            "NumPy": lambda: in_numpy_back(host_codes, host_scales, host.dtype),
        },
    }
    rows = []
    for what, each in runs.items():
        ms = interleaved(each, repeats=repeats)
        row = {"what": what, "dtype": dtype}
        row |= {f"{name} ms": ms.get(name) for name in runs["quantize"]}
        rows.append(row | {"times faster than floats": ms["floats"] / ms["moe_ref"]})
    return rows


def rows() -> list[dict]:
    """The table."""
    return [row for dtype in ("float32", "bfloat16") for row in measure(dtype)]
