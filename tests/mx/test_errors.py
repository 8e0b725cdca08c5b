"""Wrong use is named, with what was needed and what came; also while tracing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import mx, oracle

X = jnp.ones((4, 64), jnp.float32)
WRONG = {
    "format": ({"format": "fp8"}, r"`format` must be one of fp8_e4m3, .*, nvfp4; got 'fp8'"),
    "rule": ({"rule": "log2"}, r"`rule` must be one of ceil, even, .*; got 'log2'"),
    "nonfinite": ({"nonfinite": "inf"}, r"`nonfinite` must be one of poison, te; got 'inf'"),
    "tail": ({"tail": "drop"}, r"`tail` must be one of pad, refuse; got 'drop'"),
    "axis": ({"axis": 2}, r"`axis` must be one or more axes of an array of rank 2; got 2"),
    "axis twice": ({"axis": (1, -1)}, r"`axis` must be axes that differ; got \(1, -1\)"),
    "no axis": ({"axis": ()}, r"`axis` must be one or more axes .*; got \(\)"),
    "block": ({"block": 0}, r"`block` must be at least 1; got 0"),
    "blocks": ({"block": (2, 2)}, r"`block` must be one length, or one for each axis; got"),
    "length": ({"axis": 0}, r'`x.shape\[-2\]` must be a multiple of block=32, or tail="pad" given'),
}
TYPES = {
    "float64": (jnp.ones((4, 32)), r"`x.dtype` must be one of bfloat16, float16, float32; got"),
    "integers": (jnp.ones((4, 32), int), r"`x` must be Float.*; got i64\[4,32\]"),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case, traced):
    changed, message = WRONG[case]
    function = functools.partial(mx.quantize, **({"format": "mxfp8_e4m3", "axis": -1} | changed))
    with pytest.raises(ValueError, match=message):
        (jax.jit(function) if traced else function)(X)


@pytest.mark.parametrize("case", TYPES)
def test_wrong_dtypes(case):
    x, message = TYPES[case]
    with pytest.raises(ValueError, match=message):
        mx.quantize(x, "mxfp8_e4m3", axis=-1)


def test_the_axis_is_never_guessed():
    with pytest.raises(TypeError, match="axis"):
        mx.quantize(X, "mxfp8_e4m3")  # pyright: ignore[reportCallIssue]


def test_dequantize():
    q = mx.quantize(X, "mxfp8_e4m3", axis=-1)
    with pytest.raises(ValueError, match="`dtype` must be one of bfloat16, float32; got 'float16'"):
        q.dequantize(jnp.float16)
    wrong = dataclasses.replace(q, scales=q.scales[:1])
    with pytest.raises(ValueError, match=r"`q.scales` must be of shape \(4, 2\); got \(1, 2\)"):
        wrong.dequantize()
    with pytest.raises(ValueError, match=r"`q\.format` must be one of"):
        dataclasses.replace(q, format="fp8").dequantize()


def test_the_oracle():
    x = np.ones((4, 32), np.float32)
    for options, message in [
        ({"format": "fp8"}, "`format`"),
        ({"rule": "log2"}, "`rule`"),
        ({"nonfinite": "inf"}, "`nonfinite`"),
        ({"axis": 2}, "`axis`"),
    ]:
        with pytest.raises(ValueError, match=message):
            oracle.quantize(x, **({"format": "mxint8", "axis": -1} | options))
    with pytest.raises(ValueError, match=r"`x\.dtype`"):
        oracle.quantize(x.astype(np.float64), "mxint8", axis=-1)
    with pytest.raises(ValueError, match="`scales`"):
        oracle.dequantize(np.zeros(64, np.uint8), np.zeros(1, np.uint8), "mxint8", axis=0)
