"""NVFP4 and block-scaled FP8: the library against the oracle, to the bit."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import mx, oracle
from mx.data import as_float32, floats, numbers, pairs, patterns, quantize, wide

FP8 = ("fp8_e4m3", "fp8_e5m2")
POLICIES = ("poison", "te")
RULES = [(format, rule) for format in ("nvfp4", *FP8) for rule in mx.rules(format)]
WAYS = (("fp8_e4m3", "poison"), ("fp8_e4m3", "te"), ("fp8_e5m2", "poison"))
PAIRS = pairs()


def assert_same(q, o):
    np.testing.assert_array_equal(np.asarray(q.elements), o.elements)
    assert q.scales.dtype == o.scales.dtype
    if q.scales.dtype == np.uint8:
        np.testing.assert_array_equal(np.asarray(q.scales), o.scales)
        assert patterns(q.tensor_scale) == patterns(o.tensor_scale)
    else:
        np.testing.assert_array_equal(patterns(q.scales), patterns(o.scales))
        assert q.tensor_scale is o.tensor_scale is None


@pytest.mark.parametrize(
    ("format", "rule", "nonfinite"),
    [(*each, policy) for each in RULES for policy in POLICIES if (each[0], policy) in WAYS],
)
def test_every_bfloat16_magnitude_of_a_block(format, rule, nonfinite):
    """And float32 ones near the boundaries of formats, with another value in each block."""
    options = {"rule": rule, "nonfinite": nonfinite, "block": 2}
    assert_same(
        quantize(PAIRS, format, **options), oracle.quantize(PAIRS, format, axis=-1, **options)
    )


# The largest magnitude of the tensor: near 1, where 1 / u is subnormal, where u is the largest
# float32, where t is 0, and Inf.
TENSORS = (1.5, 3e38, 2688 * 2.0**-128, 1e-42, 2.0**-149, np.inf)


@pytest.mark.parametrize("nonfinite", POLICIES)
@pytest.mark.parametrize("rule", mx.rules("nvfp4"))
def test_every_bfloat16_magnitude_of_a_block_under_a_tensor_scale(rule, nonfinite):
    options = {"rule": rule, "nonfinite": nonfinite, "block": 2}
    scales = set()
    for largest in TENSORS:
        x = np.where(np.abs(PAIRS) <= largest, PAIRS, np.float32(largest))
        o = oracle.quantize(x, "nvfp4", axis=-1, **options)
        assert_same(quantize(x, "nvfp4", **options), o)
        scales |= set(o.scales.ravel().tolist())
    assert scales >= set(range(0x08 if rule == "torchao" else 0, 0x7F))


@pytest.mark.parametrize("rule", ["te", "torchao"])
def test_every_bfloat16_magnitude_of_a_tensor(rule):
    """Each a tensor of its own under `vmap`, told apart by the scale and by what is read back."""
    largest = floats(np.arange(0x7F80, dtype=np.uint32) << 16)
    x = jnp.asarray(np.stack([largest, largest / 3], -1))
    q = jax.vmap(lambda row: quantize(row, "nvfp4", rule=rule, block=1))(x)
    values = largest.astype(np.float64)
    with np.errstate(divide="ignore"):
        if rule == "torchao":
            wanted = (values / 2688).astype(np.float32)
        else:
            inverse = np.minimum(2688 / values, np.finfo(np.float32).max).astype(np.float32)
            inverse = np.where(values == 0, np.float32(1), inverse).astype(np.float32)
            wanted = np.float32(1) / inverse
    np.testing.assert_array_equal(patterns(q.tensor_scale), patterns(wanted))
    exact = [
        oracle.dequantize(q.elements[i], q.scales[i], "nvfp4", axis=-1, block=1, tensor_scale=t)
        for i, t in list(enumerate(wanted))[::97]
    ]
    np.testing.assert_array_equal(patterns(q.dequantize())[::97], patterns(as_float32(exact)))


@pytest.mark.parametrize(("format", "dtype"), [("nvfp4", "bfloat16"), ("fp8_e4m3", "float16")])
def test_blocks_of_the_usual_size(format, dtype):
    x = np.clip(wide(64), -6e4, 6e4).reshape(-1, 128).astype(ml_dtypes.bfloat16).astype(dtype)
    q = mx.quantize(jnp.asarray(x), format, axis=-1)
    assert q.block == ({"nvfp4": 16}.get(format, 128),)
    assert_same(q, oracle.quantize(x, format, axis=-1))


@pytest.mark.parametrize("format", ["nvfp4", "fp8_e4m3"])
@pytest.mark.parametrize("axis", [0, (-2, -1)])
def test_blocks_along_rows_columns_and_both(format, axis):
    """Weights of DeepSeek-V3 have blocks of 128 by 128, TE's NVFP4 of 16 by 16; tails are short."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(200, 300)) * 2.0 ** rng.integers(-9, 9, (200, 300))).astype(np.float32)
    q = mx.quantize(jnp.asarray(x), format, axis=axis, tail="pad")
    o = oracle.quantize(x, format, axis=axis)
    assert_same(q, o)
    exact = oracle.dequantize(o.elements, o.scales, format, axis=axis, tensor_scale=o.tensor_scale)
    np.testing.assert_array_equal(patterns(q.dequantize()), patterns(as_float32(exact)))


@pytest.mark.parametrize(
    ("format", "rule"), [("nvfp4", "te"), ("nvfp4", "torchao"), ("fp8_e4m3", "deepgemm")]
)
def test_eager_and_jitted_are_the_same(format, rule):
    """Also among floats that a compiler would like to fuse with them."""
    x = jnp.asarray(PAIRS[::64])
    options = {"axis": -1, "block": 2, "rule": rule}

    @jax.jit
    def fused(x):
        q = mx.quantize(x * jnp.float32(0.75), format, **options)
        return q, q.dequantize(), q.dequantize() * jnp.float32(3) + x

    q, values, _ = fused(x)
    # Rounded to zero by this machine where it is subnormal, in both.
    eager = mx.quantize(x * jnp.float32(0.75), format, **options)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(q), strict=True):
        np.testing.assert_array_equal(
            np.atleast_1d(a).view(np.uint8), np.atleast_1d(b).view(np.uint8)
        )
    np.testing.assert_array_equal(patterns(values), patterns(eager.dequantize()))


def test_op_by_op_is_the_same():
    x = jnp.asarray(PAIRS[::64])
    with jax.disable_jit():
        slow = quantize(x, "fp8_e4m3", block=2)
        values = slow.dequantize()
    assert_same(slow, oracle.quantize(x, "fp8_e4m3", axis=-1, block=2))
    np.testing.assert_array_equal(patterns(values), patterns(jax.jit(mx.dequantize)(slow)))


# What a block of zeros, and of NaN and Inf, becomes: scale, codes of -0, and of an ordinary 1.
ZEROS = {
    ("nvfp4", "te"): (0x00, 0x8),
    ("nvfp4", "te_unfolded"): (0x00, 0x8),
    ("nvfp4", "torchao"): (0x08, 0x8),
    ("fp8_e4m3", "divide"): (0.0, 0x80),
    ("fp8_e4m3", "deepseek_v3"): (0.0, 0x7F),
    ("fp8_e4m3", "deepgemm"): (np.float32(1e-4) / np.float32(448), 0x80),
    ("fp8_e4m3", "te"): (1.0, 0x80),
}


@pytest.mark.parametrize(("format", "rule"), ZEROS)
def test_a_block_of_zeros(format, rule):
    scale, code = ZEROS[format, rule]
    x = np.ones((3, 16), np.float32)
    x[1] = -0.0
    q = quantize(x, format, rule=rule, block=16)
    assert q.scales[1, 0] == scale
    assert set(q.elements[1].tolist()) == {code}
    values = np.asarray(q.dequantize())
    if code == 0x7F:
        assert np.isnan(values[1]).all()
    else:
        assert (np.signbit(values[1]) & (values[1] == 0)).all()
    assert (values[[0, 2]] == values[0, 0]).all()
    assert abs(values[0, 0] - 1) <= 2.0**-23, "one float32 rounding for each of the operations"


@pytest.mark.parametrize("rule", mx.rules("nvfp4"))
def test_a_tensor_of_zeros(rule):
    q = quantize(np.zeros((2, 16), np.float32), "nvfp4", rule=rule)
    if rule == "torchao":
        assert set(q.scales.ravel().tolist()) == {0x7F}
        assert np.isnan(q.dequantize()).all()
    else:
        assert q.tensor_scale == 1
        assert not np.asarray(q.dequantize()).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("format", "rule"), ZEROS)
def test_what_is_not_finite_poisons_its_block_alone(format, rule, value):
    x = np.linspace(-3, 5, 48, dtype=np.float32).reshape(3, 16)
    before = quantize(x, format, rule=rule, block=16)
    x[1] = value
    after = quantize(x, format, rule=rule, block=16)
    values = np.asarray(after.dequantize())
    assert np.isnan(values[1]).all()
    np.testing.assert_array_equal(values[[0, 2]], np.asarray(before.dequantize())[[0, 2]])
    alone = quantize(x, format, rule=rule, block=16, nonfinite="te")
    if np.isnan(value):
        np.testing.assert_array_equal(np.asarray(alone.dequantize())[[0, 2]], values[[0, 2]])
    else:
        largest = {"nvfp4": 6 * 448.0}.get(format, 448.0)
        assert (np.asarray(alone.dequantize())[1] == np.copysign(largest, value)).all()


def test_another_implementation_of_te():
    """Its kernel's float32 operations one after the other, with the casts of ml_dtypes."""
    x = wide(512, seed=5).reshape(-1, 16)
    x = np.where(np.isfinite(x) & (np.abs(x) < 1e6), x, 0).astype(np.float32)
    one, most = np.float32(1), np.finfo(np.float32).max
    u = np.float32(2688) / np.abs(x).max()
    scale = np.abs(x).max(-1, keepdims=True) * (u * (one / np.float32(6)))
    scale = np.minimum(scale, np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.minimum(one / (scale.astype(np.float32) * (one / u)), most)
        element = np.clip(x * factor, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    q = quantize(x, "nvfp4")
    np.testing.assert_array_equal(np.asarray(q.scales), scale.view(np.uint8))
    np.testing.assert_array_equal(np.asarray(q.elements), element.view(np.uint8))
    assert patterns(q.tensor_scale) == patterns(one / u)


def near_middles(format, rule):
    """Blocks that hold the float32 numbers next to the middles between their elements.

    Elsewhere a reciprocal and a division, or another order of operations, give the same codes.
    """
    form = "mxfp4_e2m1" if format == "nvfp4" else "mx" + format
    middles = (numbers(form)[1:] + numbers(form)[:-1]) / 2
    rng = np.random.default_rng(8)
    largest = (rng.uniform(1, 2, 2000 if format == "nvfp4" else 200) * 100).astype(np.float32)
    q = quantize(largest[:, None], format, rule=rule, block=1)
    unit = (
        oracle.dequantize(
            np.ones(q.elements.shape, np.uint8),
            np.asarray(q.scales),
            format,
            axis=-1,
            block=1,
            tensor_scale=q.tensor_scale,
        )
        / numbers(form)[1]
    )
    points = patterns(unit * middles)[:, :, None] + np.arange(-1, 2).astype(np.uint32)
    x = floats(points.reshape(len(largest), -1))
    return np.concatenate([largest[:, None], np.where(x <= largest[:, None], x, 0)], -1)


@pytest.mark.parametrize("format", ["nvfp4", "fp8_e4m3"])
def test_the_order_of_operations(format):
    """The codes next to a middle are the oracle's; and other rules with these scales differ."""
    rules = [rule for rule in mx.rules(format) if rule != "deepseek_v3"]
    for rule in rules:
        x = near_middles(format, rule)
        q = quantize(x, format, rule=rule, block=x.shape[-1])
        assert_same(q, oracle.quantize(x, format, axis=-1, rule=rule, block=x.shape[-1]))
        for other in rules:
            o = oracle.quantize(x, format, axis=-1, rule=other, block=x.shape[-1])
            same = np.asarray(q.scales) == o.scales
            differ = (np.asarray(q.elements) != o.elements).any(-1, keepdims=True)
            assert (same & differ).any() == (
                other != rule and {rule, other} != {"te", "te_unfolded"}
            )


@pytest.mark.parametrize("format", FP8)
def test_another_implementation_of_deepseek(format):
    """Float32 divisions one after the other, with the casts of ml_dtypes."""
    x = wide(512, seed=6)
    x = np.where(np.isfinite(x), x, 1).astype(np.float32)
    x[:, 0] += np.float32(1e-30)  # no block of zeros
    dtype = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}[format]
    top = np.float32(ml_dtypes.finfo(dtype).max)
    scale = np.abs(x).max(-1, keepdims=True) / top
    element = np.clip(x / scale, -top, top).astype(dtype)
    for rule in ("divide", "deepseek_v3"):
        q = quantize(x, format, rule=rule, block=32)
        np.testing.assert_array_equal(patterns(q.scales), patterns(scale))
        np.testing.assert_array_equal(np.asarray(q.elements), element.view(np.uint8))


def test_wrong_use():
    x = jnp.ones((4, 128), jnp.float32)
    with pytest.raises(
        ValueError, match=r"`rule` must be one of te, te_unfolded, torchao; got 'rceil'"
    ):
        mx.quantize(x, "nvfp4", axis=-1, rule="rceil")
    with pytest.raises(ValueError, match=r"`rule` must be one of ceil, .*; got 'divide'"):
        mx.quantize(x, "mxfp8_e4m3", axis=-1, rule="divide")
    with pytest.raises(ValueError, match=r"`format` must be one of"):
        mx.rules("fp8")
    with pytest.raises(ValueError, match=r"`x.shape\[-2\]` must be a multiple of block=128"):
        mx.quantize(x, "fp8_e4m3", axis=(-2, -1))
    q = mx.quantize(x, "nvfp4", axis=-1)
    for wrong in (None, jnp.ones(3, jnp.float32), jnp.ones((4, 128), jnp.float32)):
        with pytest.raises(ValueError, match=r"`q.tensor_scale` must be a number, or of leading"):
            dataclasses.replace(q, tensor_scale=wrong).dequantize()
    with pytest.raises(ValueError, match=r"`q.scales.dtype` must be float32; got uint8"):
        mx.Quantized(q.elements, q.scales, "fp8_e4m3", (-1,), (16,)).dequantize()
    with pytest.raises(ValueError, match=r"`format` must be one of"):
        mx.grouped_matmul_mx(x, jnp.ones((1, 128, 4), jnp.float32), jnp.array([4]), format="nvfp4")
