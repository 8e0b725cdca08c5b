"""Wrong use is named, with what was needed and what came; also while tracing."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from moe_ref.grouped import grouped_matmul, validate_group_sizes

X, W, SIZES = jnp.ones((8, 2)), jnp.ones((3, 2, 4)), jnp.array([3, 0, 4])

WRONG = {
    "rank of x": ((X[0], W, SIZES), {}, r"`x` must be .*rows k.*; got f64\[2\]"),
    "rank of w": ((X, W[0], SIZES), {}, r"`w` must be .*experts k n.*; got f64\[2,4\]"),
    "rank of sizes": ((X, W, SIZES[None]), {}, r"`group_sizes` must be .*; got i64\[1,3\]"),
    "k": ((X, W[:, :1], SIZES), {}, r"`w` must be .*where rows=8, k=2.*; got f64\[3,1,4\]"),
    "experts": ((X, W, SIZES[:2]), {}, r"`group_sizes` must be .*experts=3.*; got i64\[2\]"),
    "float sizes": (
        (X, W, SIZES.astype(float)),
        {},
        r"`group_sizes` must be Integer.*; got f64\[3\]",
    ),
    "integer x": ((X.astype(int), W, SIZES), {}, r"`x` must be Float.*; got i64\[8,2\]"),
    "narrow dtype": (
        (X.astype(jnp.float8_e4m3fn), W.astype(jnp.float8_e4m3fn), SIZES),
        {},
        r"`x.dtype` must be one of bfloat16, float16, float32, float64; got float8_e4m3fn",
    ),
    "two dtypes": (
        (X, W.astype(jnp.float32), SIZES),
        {},
        r"`w.dtype` must be x.dtype=float64; got float32",
    ),
    "implementation": (
        (X, W, SIZES),
        {"implementation": "fast"},
        r"`implementation` must be one of auto, blocked, loop, xla; got 'fast'",
    ),
    "integer result": ((X, W, SIZES), {"out_dtype": jnp.int32}, r"`out_dtype` must be .*int32"),
    "no dtype": ((X, W, SIZES), {"out_dtype": "wide"}, r"`out_dtype` must be .*; got wide"),
    "precision": ((X, W, SIZES), {"precision": "low"}, r"`precision` must be .*; got 'low'"),
}


def evaluate_shape(function):
    return functools.partial(jax.eval_shape, function)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("transform", [lambda function: function, jax.jit, evaluate_shape])
def test_bug_42_wrong_use_is_named(wrong, transform):
    arrays, options, message = WRONG[wrong]

    def call(*arrays):
        return grouped_matmul(*arrays, **options)

    with pytest.raises(ValueError, match=message):
        transform(call)(*arrays)


def test_rows_past_the_range_of_int32():
    x = jax.ShapeDtypeStruct((2**31, 1), jnp.float32)
    w = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32)
    with pytest.raises(ValueError, match=r"`x.shape\[0\]` must be below 2\*\*31.*; got 2147483648"):
        jax.eval_shape(grouped_matmul, x, w, jax.ShapeDtypeStruct((1,), jnp.int64))


SEEN = [
    (jnp.array([3, 0, 6]), r"at most rows=8 in sum; got \[3, 0, 6\], which sum to 9"),
    (jnp.array([200, 100, 0], jnp.uint8), r"got \[200, 100, 0\], which sum to 300"),
    (jnp.array([3, -1, 4]), r"`group_sizes` must be non-negative; got \[3, -1, 4\]"),
]


@pytest.mark.parametrize(("sizes", "message"), SEEN)
def test_impossible_sizes_that_can_be_seen(sizes, message):
    with pytest.raises(ValueError, match=message):
        grouped_matmul(X, W, sizes)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda x: grouped_matmul(x, W, sizes))(X)
    with pytest.raises(ValueError, match=message):
        validate_group_sizes(sizes, rows=8)


@pytest.mark.parametrize(
    "sizes",
    [
        jnp.array([3, 0, 6]),
        jnp.array([200, 100, 0], jnp.uint8),
        jnp.array([3, -1, 4]),
        jnp.array([2**32, 0, 0]),
        jnp.array([2**31, 2**31, 0], jnp.uint32),
        jnp.array([2**31 - 1] * 3),
    ],
)
def test_impossible_sizes_stop_a_validated_program(sizes):
    validate = eqx.filter_jit(lambda sizes: validate_group_sizes(sizes, rows=8))
    with pytest.raises(eqx.EquinoxRuntimeError, match="at most rows=8 in sum"):
        jax.block_until_ready(validate(sizes))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_validation_lets_possible_sizes_pass(dtype):
    validate = eqx.filter_jit(lambda sizes: validate_group_sizes(sizes, rows=8))
    for sizes in ([8, 0, 0], [3, 0, 4], [0, 0, 0]):
        assert validate(jnp.array(sizes, dtype)).tolist() == sizes
