"""Blocks that tell rules apart, and what each format is called elsewhere."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from moe_ref import mx

FORMATS = tuple(format for format in mx.formats() if format.startswith("mx"))
RULES = mx.rules()
POLICIES = ("poison", "te")
LARGEST = {
    "mxfp8_e4m3": 448.0,
    "mxfp8_e5m2": 57344.0,
    "mxfp6_e3m2": 28.0,
    "mxfp6_e2m3": 7.5,
    "mxfp4_e2m1": 6.0,
    "mxint8": 127 / 64,
}
DTYPES = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp4_e2m1": ml_dtypes.float4_e2m1fn,
}


def floats(patterns):
    return np.asarray(patterns, np.uint32).view(np.float32)


def patterns(values):
    return np.asarray(values, np.float32).view(np.uint32)


def wide(rows=1024, seed=0):
    """Blocks of 32 at every exponent, their values spread over 2^14 either way; some not finite."""
    rng = np.random.default_rng(seed)
    fraction = rng.integers(0, 2**32, (rows, 32), np.uint32) & 0x807FFFFF
    exponent = rng.integers(0, 255, (rows, 1)) + rng.integers(-14, 15, (rows, 32))
    blocks = fraction | (np.clip(exponent, 0, 254).astype(np.uint32) << 23)
    blocks[::16, 5] = np.resize([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001], -(-rows // 16))
    blocks[8::64] &= 0x80000000
    return floats(blocks)


def magnitudes():
    """Every bfloat16 magnitude, and float32 ones around the boundaries of every rule and format."""
    edges = [0, 1 << 22, 1 << 23]
    for largest in LARGEST.values():
        edges.append(int(patterns(largest)) & 0x7FFFFF)
    for mantissa in (1, 2, 3, 6):
        edges.append((1 << 23) - (1 << (22 - mantissa)))
    near = np.unique([edge + d for edge in edges for d in range(-2, 4)])
    around = (np.arange(255)[:, None] << 23) + near
    around = around[(around >= 0) & (around <= 0x7F800000)]
    return floats(np.unique(np.concatenate([np.arange(0x8000) << 16, around])))


def pairs():
    """Blocks of two: each of `magnitudes`, and a value up to 2^8 below it; signs at random."""
    amax = patterns(magnitudes())
    rng = np.random.default_rng(1)
    below = np.maximum(amax.astype(np.int64) - rng.integers(0, 1 << 26, amax.shape), 0)
    blocks = np.stack([amax, below.astype(np.uint32)], -1)
    return floats(blocks | (rng.integers(0, 2, blocks.shape).astype(np.uint32) << 31))


def quantize(x, format, **options):
    return mx.quantize(jnp.asarray(x), format, axis=-1, **options)


def as_float32(values):
    """Float64 to float32, where what is too large is Inf."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32)


def numbers(format):
    """The non-negative finite numbers of a format, by ml_dtypes where it knows the format."""
    if format == "mxint8":
        return np.arange(128) / 64
    codes = np.arange(128 if "fp8" in format else 8 if "fp4" in format else 32, dtype=np.uint8)
    values = codes.view(DTYPES[format]).astype(np.float64)
    return values[np.isfinite(values)]
