"""Moving rows beside the same written with plain indexing, differentiated by JAX.

Values are small integers, so sums are exact in any order and everything is compared for equality.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_ref import dispatch
from moe_ref.conformance import strategies
from moe_ref.spec import CapacitySpec

TOKENS, K, EXPERTS, D = 7, 3, 5, 4
PLANS = {
    "dropless": functools.partial(dispatch.plan, num_experts=EXPERTS),
    "token-major": functools.partial(
        dispatch.plan_capacity,
        num_experts=EXPERTS,
        capacity=CapacitySpec(expert_capacity=2),
    ),
    "k-major": functools.partial(
        dispatch.plan_capacity,
        num_experts=EXPERTS,
        capacity=CapacitySpec(expert_capacity=3, drop_order="k_major"),
    ),
}
# Rows of each plan: TOKENS * K, EXPERTS * 2, EXPERTS * 3.
ROWS = {"dropless": 21, "token-major": 10, "k-major": 15}
DRAWN = strategies.routings(tokens=TOKENS, k=K, num_choices=EXPERTS + 1)


def plain_permute(x, p):
    return jnp.where(p.filled[:, None], x[p.slot // K], 0)


def plain_permute_weights(weights, p):
    return jnp.where(p.filled[:, None], weights.reshape(-1)[p.slot][:, None], 0)


def plain_unpermute(rows, p):
    return jnp.where(p.kept[:, :, None], rows[p.row], 0)


def plain_combine(rows, weights, p):
    slots = plain_unpermute(rows, p)
    return (slots if weights is None else slots * weights[:, :, None]).sum(axis=1)


def integers(rng, *shape):
    return jnp.asarray(rng.integers(-3, 4, shape), jnp.float32)


@functools.cache
def both(name):
    """Values and gradients of every move, and of the plain one."""

    @jax.jit
    def run(ids, x, weights, rows, seeds):
        p = PLANS[name](ids)
        pairs = [
            (dispatch.permute, plain_permute, (x,)),
            (dispatch.permute_weights, plain_permute_weights, (weights,)),
            (dispatch.unpermute, plain_unpermute, (rows,)),
            (dispatch.combine, plain_combine, (rows, weights)),
            (
                lambda rows, p: dispatch.combine(rows, None, p),
                lambda rows, p: plain_combine(rows, None, p),
                (rows,),
            ),
        ]
        results = []
        for mine, plain, arguments in pairs:
            value, back = jax.vjp(lambda *a, f=mine: f(*a, p), *arguments)
            wanted, plain_back = jax.vjp(lambda *a, f=plain: f(*a, p), *arguments)
            cotangent = seeds[: value.size].reshape(value.shape)
            results.append(((value, back(cotangent)), (wanted, plain_back(cotangent))))
        return results

    return run


@pytest.mark.parametrize("name", PLANS)
@given(ids=DRAWN, seed=strategies.seeds())
def test_moves_and_gradients_equal_plain_indexing(name, ids, seed):
    rng = np.random.default_rng(seed)
    shapes = [(TOKENS, D), (TOKENS, K), (ROWS[name], D), (100,)]
    results = both(name)(jnp.asarray(ids), *(integers(rng, *shape) for shape in shapes))
    for mine, wanted in results:
        jax.tree.map(np.testing.assert_array_equal, mine, wanted)


@given(ids=DRAWN, seed=strategies.seeds())
@settings(max_examples=max(1, settings.default.max_examples // 3))
def test_combine_is_linear(ids, seed):
    """In the rows, and in the weights."""
    p = PLANS["dropless"](jnp.asarray(ids))
    rng = np.random.default_rng(seed)
    a, b = (integers(rng, TOKENS * K, D) for _ in range(2))
    v, w = (integers(rng, TOKENS, K) for _ in range(2))
    combine = functools.partial(dispatch.combine, plan=p)
    assert (combine(2 * a - b, v) == 2 * combine(a, v) - combine(b, v)).all()
    assert (combine(a, 2 * v - w) == 2 * combine(a, v) - combine(a, w)).all()


@given(ids=DRAWN)
@settings(max_examples=max(1, settings.default.max_examples // 3))
def test_moving_there_and_back_is_multiplying_by_the_number_of_slots(ids):
    x = integers(np.random.default_rng(0), TOKENS, D)
    for make in PLANS.values():
        p = make(jnp.asarray(ids))
        there_and_back = dispatch.combine(dispatch.permute(x, p), None, p)
        slots = p.kept.sum(axis=1, keepdims=True)
        assert (there_and_back == x * slots.astype(x.dtype)).all()


@functools.cache
def pulled(name):
    """Value and gradients of moving there and back."""

    @jax.jit
    def run(ids, rows, weights, seeds, dy, x):
        p = PLANS[name](ids)
        y, back = jax.vjp(lambda r, w: dispatch.combine(r, w, p), rows, weights)
        copies, back_x = jax.vjp(lambda x: dispatch.permute(x, p), x)
        return y, back(dy), copies, back_x(seeds)

    return run


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("name", PLANS)
@given(data=st.data())
@settings(max_examples=max(1, settings.default.max_examples // 5))
def test_what_no_slot_owns_is_not_read(name, poison, data):
    """Poison unfilled rows, forward and backward, and the weights of slots without a row."""
    ids = jnp.asarray(data.draw(DRAWN))
    p = PLANS[name](ids)
    rng = np.random.default_rng(data.draw(strategies.seeds()))
    rows, seeds = integers(rng, ROWS[name], D), integers(rng, ROWS[name], D)
    weights, dy = integers(rng, TOKENS, K), integers(rng, TOKENS, D)
    x = integers(rng, TOKENS, D)
    clean = pulled(name)(ids, rows, weights, seeds, dy, x)
    bad_rows, bad_seeds = (jnp.where(p.filled[:, None], a, poison) for a in (rows, seeds))
    bad_weights = jnp.where(p.kept, weights, poison)
    found = pulled(name)(ids, bad_rows, bad_weights, bad_seeds, dy, x)
    jax.tree.map(np.testing.assert_array_equal, found, clean)
    _, (d_rows, d_weights), copies, _ = found
    assert not d_rows[~p.filled].any()
    assert not d_weights[~p.kept].any()
    assert not copies[~p.filled].any()


def test_combine_adds_in_float32_and_slot_order():
    """256 and seven ones: bfloat16 would stay at 256 after each addition."""
    p = dispatch.plan(jnp.arange(8)[None, :], num_experts=8)
    rows = jnp.asarray([[256.0]] + [[1.0]] * 7, jnp.bfloat16)
    for weights in (None, jnp.ones((1, 8), jnp.bfloat16)):
        y = dispatch.combine(rows, weights, p)
        assert y.dtype == jnp.float32
        assert y.tolist() == [[263.0]]


def test_gradient_of_permute_is_summed_in_float32():
    p = dispatch.plan(jnp.arange(8)[None, :], num_experts=8)
    x = jnp.ones((1, 1), jnp.bfloat16)
    _, back = jax.vjp(lambda x: dispatch.permute(x, p), x)
    (gradient,) = back(jnp.asarray([[256.0]] + [[1.0]] * 7, jnp.bfloat16))
    assert gradient.dtype == jnp.bfloat16
    assert gradient.tolist() == [[264.0]]


@pytest.mark.parametrize("name", PLANS)
def test_no_tokens(name):
    ids = jnp.zeros((0, K), jnp.int32)
    p = PLANS[name](ids)
    copies, back = jax.vjp(lambda x: dispatch.permute(x, p), jnp.zeros((0, D)))
    assert not copies.any()
    assert back(jnp.full(copies.shape, np.nan))[0].shape == (0, D)
    y = dispatch.combine(jnp.full(copies.shape, np.nan), jnp.zeros((0, K)), p)
    assert y.shape == (0, D)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (
            dispatch.permute,
            jnp.zeros((6, D)),
            r"`x` must be of the plan's 7 tokens; got shape \(6, 4\)",
        ),
        (dispatch.permute, jnp.zeros(7), r"permute: `x` must be Float.*got f64\[7\]"),
        (dispatch.permute, jnp.zeros((7, D), int), r"permute: `x` must be Float.*got i64\[7,4\]"),
        (
            dispatch.permute_weights,
            jnp.zeros((6, K)),
            r"`weights` must be one for each of the plan's 7 ",
        ),
        (
            dispatch.unpermute,
            jnp.zeros((20, D)),
            r"`rows` must be the plan's 21 rows; got shape \(20, 4\)",
        ),
    ],
)
def test_errors(function, argument, message, transform):
    p = PLANS["dropless"](jnp.zeros((TOKENS, K), jnp.int32))
    with pytest.raises(ValueError, match=message):
        transform(lambda argument: function(argument, p))(argument)


def test_weights_of_another_shape_are_refused():
    p = PLANS["dropless"](jnp.zeros((TOKENS, K), jnp.int32))
    weights = jnp.zeros((TOKENS, K - 1))
    message = (
        r"`weights` must be one for each of the plan's 7 tokens and 3 slots; got shape \(7, 2\)"
    )
    with pytest.raises(ValueError, match=message):
        dispatch.combine(jnp.zeros((TOKENS * K, D)), weights, p)
    with pytest.raises(ValueError, match=message):
        dispatch.permute_weights(weights, p)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_poisoned_cotangent_reaches_no_slot_without_a_row(poison):
    ids = jnp.array([[0, -1], [1, 0]])
    p = dispatch.plan(ids, num_experts=2)
    rows, weights = jnp.ones((4, 3)), jnp.full((2, 2), 2.0)
    seed = jnp.ones((2, 3)).at[0].set(poison)
    drows, dweights = jax.vjp(lambda r, w: dispatch.combine(r, w, p), rows, weights)[1](seed)
    own = int(p.row[0, 0])
    assert not np.isfinite(drows[own]).any()
    assert (jnp.delete(drows, jnp.array([own, 3]), axis=0) == 2).all()
    assert (drows[3] == 0).all()
    assert not np.isfinite(dweights[0, 0])
    assert dweights[0, 1] == 0
    assert (dweights[1] == 3).all()
