"""The FP8 kernels without a GPU: interpreted beside the integers, and lowered for one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import mx
from moe_ref.mx import _triton

FP8 = ("mxfp8_e4m3", "mxfp8_e5m2")


def hard(dtype):
    """Blocks of all magnitudes but those whose float32 this machine reads as zero."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 128)) * 2.0 ** rng.integers(-60, 60, (64, 128))
    x[3, 5], x[4, 40], x[5, 64:96], x[6, 0] = np.nan, -np.inf, 0.0, -0.0
    return jnp.asarray(np.where(np.isfinite(x), np.clip(x, -60000, 60000), x), dtype)


@pytest.fixture
def interpreted(monkeypatch):
    def switch(on):
        monkeypatch.setattr(_triton, "INTERPRET", on)
        jax.clear_caches()

    yield switch
    jax.clear_caches()


@pytest.mark.parametrize("format", FP8)
@pytest.mark.parametrize(
    ("axis", "rule", "nonfinite", "dtype"),
    [
        (-1, "rceil", "te", "bfloat16"),
        (0, "even", "poison", "float32"),
        (0, "floor", "te", "float16"),
    ],
)
def test_as_the_integers(interpreted, axis, rule, nonfinite, format, dtype):
    x, bits = hard(dtype), []
    for on in (False, True):
        interpreted(on)
        q = mx.quantize(x, format, axis=axis, rule=rule, nonfinite=nonfinite)
        values = [mx.dequantize(q, dtype) for dtype in (jnp.float32, jnp.bfloat16)]
        bits.append([np.asarray(a).tobytes() for a in (q.elements, q.scales, *values)])
    assert bits[0] == bits[1]


@pytest.mark.parametrize(
    ("shape", "axes", "lengths", "format"),
    [
        ((64, 128), (-1,), (16,), "mxfp8_e4m3"),
        ((64, 48), (-1,), (32,), "mxfp8_e4m3"),
        ((64, 128), (-2, -1), (1, 32), "mxfp8_e4m3"),
        ((3, 7, 32), (-1,), (32,), "mxfp8_e4m3"),
        ((64, 128), (-1,), (32,), "mxfp4_e2m1"),
        ((0, 128), (-1,), (32,), "mxfp8_e4m3"),
    ],
)
def test_what_is_left_to_the_integers(shape, axes, lengths, format):
    assert _triton.tiles("quantize", shape, axes, lengths, format) is None


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in shard_map"])
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("format", FP8)
def test_lowers_for_a_gpu(monkeypatch, format, axis, inside):
    monkeypatch.setattr(_triton, "gpu_capability", lambda: (9, 0))
    jax.clear_caches()
    device = jax.sharding.AbstractDevice("NVIDIA H200", 132, "cuda")
    kind = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("e",), axis_types=kind, abstract_device=device)

    def both(x):
        return mx.quantize(x, format, axis=axis).dequantize(jnp.bfloat16)

    if inside:
        both = jax.shard_map(both, mesh=mesh, in_specs=jax.P("e"), out_specs=jax.P("e"))
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(both).trace(jax.ShapeDtypeStruct((256, 128), jnp.bfloat16))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    jax.clear_caches()
    assert text.count("triton") >= 2
