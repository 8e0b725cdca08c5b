"""Plans beside a simulation that serves one slot after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.simulate import served
from moe_ref.conformance import strategies
from moe_ref.dispatch import plan, plan_capacity
from moe_ref.spec import CapacitySpec

TOKENS, K, EXPERTS = 7, 3, 5
IDS = strategies.routings(tokens=TOKENS, k=K, num_choices=EXPERTS + 1)
CAPACITIES = [
    CapacitySpec(**number, drop_order=order)
    for number in (
        {"expert_capacity": 0},
        {"expert_capacity": 2},
        {"expert_capacity": TOKENS * K},
        {"capacity_factor": 1.0},
        {"capacity_factor": 1.0, "capacity_rounding": "floor"},
    )
    for order in ("token_major", "k_major")
]
planned = jax.jit(plan, static_argnames="num_experts")
planned_capacity = jax.jit(plan_capacity, static_argnames=("num_experts", "capacity"))


def assert_bijection(p, wanted):
    """slot and row are each other's inverse on what is kept."""
    kept, row, slot, filled = (np.asarray(a) for a in (p.kept, p.row, p.slot, p.filled))
    assert (kept == wanted.kept).all()
    rows = row[kept]
    assert len(set(rows)) == len(rows) == filled.sum()
    assert filled[rows].all()
    assert (slot[rows] == np.flatnonzero(kept)).all()
    assert np.asarray(p.group_sizes).tolist() == [len(mine) for mine in wanted.rows]


@given(IDS)
def test_dropless_rows_are_sorted_by_expert_then_token(ids):
    p = planned(jnp.asarray(ids), num_experts=EXPERTS)
    wanted = served(ids, EXPERTS, None)
    assert_bijection(p, wanted)
    assert (wanted.kept == ((ids >= 0) & (ids < EXPERTS))).all()
    in_order = [token * K + slot for mine in wanted.rows for token, slot in mine]
    assert p.slot[: len(in_order)].tolist() == in_order
    assert sorted(p.slot.tolist()) == list(range(TOKENS * K))
    assert p.filled.tolist() == [True] * len(in_order) + [False] * (TOKENS * K - len(in_order))


@given(IDS, st.sampled_from(CAPACITIES))
def test_capacity_rows_are_served_in_order(ids, capacity):
    p = planned_capacity(jnp.asarray(ids), num_experts=EXPERTS, capacity=capacity)
    wanted = served(ids, EXPERTS, capacity)
    assert_bijection(p, wanted)
    slots = capacity.slots(tokens=TOKENS, k=K, num_experts=EXPERTS)
    assert p.slot.shape == p.filled.shape == (EXPERTS * slots,)
    for expert, mine in enumerate(wanted.rows):
        own = slice(expert * slots, (expert + 1) * slots)
        assert p.slot[own].tolist()[: len(mine)] == [token * K + slot for token, slot in mine]
        assert p.filled[own].tolist() == [True] * len(mine) + [False] * (slots - len(mine))
    assert ((np.asarray(p.slot) >= 0) & (np.asarray(p.slot) < TOKENS * K)).all()


def test_the_two_orders_drop_different_slots():
    ids = jnp.array([[0, 1], [1, 0], [2, 0]])
    drops = {
        order: plan_capacity(
            ids, num_experts=3, capacity=CapacitySpec(expert_capacity=1, drop_order=order)
        ).kept.tolist()
        for order in ("token_major", "k_major")
    }
    assert drops == {
        "token_major": [[True, True], [False, False], [True, False]],
        "k_major": [[True, False], [True, False], [True, False]],
    }


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64"])
@pytest.mark.parametrize("num_experts", [3, 300])
def test_ids_of_any_dtype(dtype, num_experts):
    """300 does not fit int8, and neither does a sum of 300 counts."""
    ids = jnp.array([[0, 2], [-1, 1], [2, 127]], dtype)
    wanted = served(np.asarray(ids), num_experts, None)
    assert_bijection(plan(ids, num_experts=num_experts), wanted)
    capacity = CapacitySpec(expert_capacity=2)
    found = plan_capacity(ids, num_experts=num_experts, capacity=capacity)
    assert_bijection(found, served(np.asarray(ids), num_experts, capacity))


def test_huge_ids_do_not_wrap():
    ids = jnp.array([[2**32, 2**32 + 1, -(2**32)]])
    assert not plan(ids, num_experts=2).kept.any()
    every = CapacitySpec(expert_capacity=3)
    assert not plan_capacity(ids, num_experts=2, capacity=every).kept.any()


@pytest.mark.parametrize(("tokens", "k"), [(0, 2), (3, 0), (0, 0)])
def test_nothing_to_plan(tokens, k):
    ids = jnp.zeros((tokens, k), jnp.int32)
    capacity = CapacitySpec(capacity_factor=2.0)
    for p in (plan(ids, num_experts=2), plan_capacity(ids, num_experts=2, capacity=capacity)):
        assert p.group_sizes.tolist() == [0, 0]
        assert p.slot.shape == p.filled.shape == (0,)
        assert p.row.shape == p.kept.shape == (tokens, k)


def test_planning_maps():
    """One plan an element, under `jax.vmap`, is the plan of each element."""
    rng = np.random.default_rng(0)
    batch = jnp.asarray(rng.integers(-1, EXPERTS + 1, (4, TOKENS, K)))
    capacity = CapacitySpec(expert_capacity=2, drop_order="k_major")
    for make in (
        functools.partial(plan, num_experts=EXPERTS),
        functools.partial(plan_capacity, num_experts=EXPERTS, capacity=capacity),
    ):
        mapped = jax.vmap(make)(batch)
        for i, ids in enumerate(batch):
            one = jax.tree.map(lambda leaf, i=i: leaf[i], mapped)
            jax.tree.map(np.testing.assert_array_equal, one, make(ids))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_errors(transform):
    capacity = CapacitySpec(expert_capacity=1)
    floats = jnp.zeros((2, 2))
    with pytest.raises(ValueError, match=r"plan: `experts` must be Int.*; got f64\[2,2\]"):
        transform(lambda ids: plan(ids, num_experts=2))(floats)
    with pytest.raises(ValueError, match=r"plan: `experts` must be Int.*k'\]; got i64\[2\]"):
        transform(lambda ids: plan(ids, num_experts=2))(jnp.zeros(2, int))
    with pytest.raises(ValueError, match=r"`num_experts` must be at least 1; got 0"):
        transform(lambda ids: plan_capacity(ids, num_experts=0, capacity=capacity))(
            jnp.zeros((2, 2), int)
        )
    with pytest.raises(ValueError, match=r"plan_capacity: `experts` must be Int.*; got f64"):
        transform(lambda ids: plan_capacity(ids, num_experts=2, capacity=capacity))(floats)
