"""Counts, their validation, and the bias that follows from them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from moe_ref.conformance import strategies
from moe_ref.routing import check_experts, expert_load, update_selection_bias


@given(
    strategies.routings(tokens=9, k=3, num_choices=5),
    strategies.masks(tokens=9),
)
def test_load_is_a_count(ids, mask):
    kept = np.broadcast_to(mask[:, None], ids.shape)
    for where in (None, jnp.asarray(kept)):
        counted = expert_load(jnp.asarray(ids), num_experts=5, kept=where)
        slots = [e for e, k in zip(ids.ravel(), kept.ravel(), strict=True) if where is None or k]
        assert counted.dtype == jnp.int32
        assert counted.tolist() == [slots.count(e) for e in range(5)]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("num_experts", [2, 200, 70_000])
def test_ids_of_a_narrow_dtype_are_widened_first(dtype, num_experts):
    """127 + 1 experts do not fit int8; comparing or filling in that dtype would wrap."""
    ids = jnp.array([[0, 1, -1, 127], [1, -128, 100, 1]], dtype)
    counted = expert_load(ids, num_experts=num_experts)
    wanted = {0: 1, 1: 3, 100: 1, 127: 1}
    assert {e: int(counted[e]) for e in wanted if e < num_experts} == {
        e: n for e, n in wanted.items() if e < num_experts
    }
    assert counted.sum() == sum(n for e, n in wanted.items() if e < num_experts)


def test_ids_of_a_wide_dtype_are_narrowed_last():
    ids = jnp.array([[2**32 + 1, 2**31], [-(2**32), 1]])
    assert expert_load(ids, num_experts=3).tolist() == [0, 1, 0]


@pytest.mark.parametrize("transform", [lambda f: f, eqx.filter_jit])
@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_checked_ids(transform, dtype):
    check = transform(lambda ids: check_experts(ids, num_choices=4))
    fine = jnp.array([[0, 3], [-1, 2]], dtype)
    assert (check(fine) == fine).all()
    for bad in (4, -2, 100):
        with pytest.raises(RuntimeError, match=r"`experts` must be -1 or in \[0, num_choices=4\)"):
            check(fine.at[0, 1].set(bad)).block_until_ready()


def test_checked_ids_below_many_experts():
    fine = jnp.array([[0, 127]], jnp.int8)
    assert (check_experts(fine, num_choices=200) == fine).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        ([6, 2, 4, 4], [-1, 1, 0, 0]),
        ([3, 3, 3, 3], [0, 0, 0, 0]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        # The mean is 9 / 4, between two counts.
        ([2, 2, 2, 3], [1, 1, 1, -1]),
        ([9, 0, 0, 0], [-1, 1, 1, 1]),
        # Times four experts this is beyond int32.
        ([1_500_000_000, 100_000_000, 100_000_000, 100_000_000], [-1, 1, 1, 1]),
    ],
)
def test_bias_steps_towards_balance(load, wanted, dtype):
    """The overloaded lose, the idle gain, and exact balance changes nothing."""
    bias = jnp.array([0.5, 0.0, -0.5, 2.0], jnp.float32)
    stepped = update_selection_bias(bias, jnp.array(load, dtype), rate=0.25)
    assert stepped.dtype == jnp.float32
    assert (stepped - bias).tolist() == [0.25 * sign for sign in wanted]


def test_centred_steps_sum_to_0():
    stepped = update_selection_bias(jnp.zeros(4), jnp.array([9, 1, 1, 1]), rate=1.0, centre=True)
    assert stepped.tolist() == [-1.5, 0.5, 0.5, 0.5]


def test_bias_errors():
    with pytest.raises(ValueError, match=r"`rate` must be at least 0; got -0.5"):
        update_selection_bias(jnp.zeros(2), jnp.zeros(2, int), rate=-0.5)
    with pytest.raises(ValueError, match=r"`load` must be .*experts=2.*; got i64\[3\]"):
        update_selection_bias(jnp.zeros(2), jnp.zeros(3, int), rate=0.5)
    with pytest.raises(ValueError, match=r"`load` must be Int.*; got f64\[2\]"):
        jax.jit(lambda load: update_selection_bias(jnp.zeros(2), load, rate=0.5))(jnp.zeros(2))


def test_load_errors():
    with pytest.raises(ValueError, match=r"expert_load: `experts` must be Int.*; got f64\[2,2\]"):
        expert_load(jnp.zeros((2, 2)), num_experts=2)
    with pytest.raises(ValueError, match=r"`kept` must be .*tokens=2, k=2.*; got bool\[2,3\]"):
        expert_load(jnp.zeros((2, 2), int), num_experts=2, kept=jnp.ones((2, 3), bool))
