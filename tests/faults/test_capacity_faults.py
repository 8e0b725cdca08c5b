"""Public faults of capacity and dropping, each as the small case that shows it."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from faults.build import constant_experts, identity_experts, run
from moe_ref.dispatch import plan_capacity
from moe_ref.layers import Capacity
from moe_ref.spec import CapacitySpec


@pytest.mark.parametrize("order", ["token_major", "k_major"])
@pytest.mark.parametrize("slots", [0, 1, 2, 4, 5])
def test_overflow_is_dropped_and_the_first_tokens_are_kept(slots, order):
    """Five tokens on one expert: exactly min(5, slots) are kept, lowest first."""
    capacity = CapacitySpec(expert_capacity=slots, drop_order=order)
    plan = plan_capacity(jnp.zeros((5, 1), int), num_experts=4, capacity=capacity)
    assert plan.kept[:, 0].tolist() == [token < slots for token in range(5)]
    assert plan.group_sizes.tolist() == [slots, 0, 0, 0]


def test_priority_between_choices_is_a_named_order():
    """Token 0's second choice or token 1's first: one slot of expert 1, both want it."""
    ids = jnp.array([[0, 1], [1, 2]])
    kept = {
        order: plan_capacity(
            ids, num_experts=3, capacity=CapacitySpec(expert_capacity=1, drop_order=order)
        ).kept.tolist()
        for order in ("token_major", "k_major")
    }
    assert kept["token_major"] == [[True, True], [False, True]]
    assert kept["k_major"] == [[True, False], [True, True]]


@pytest.mark.parametrize("slots", [0, 1])
def test_a_dropped_token_gives_0_and_not_its_input(slots):
    """The residual is the caller's. No gradient passes through a dropped slot."""
    layer = identity_experts(3, 2, k=1)
    x = jnp.arange(1.0, 10, dtype=jnp.float32).reshape(3, 3)
    ids = jnp.zeros((3, 1), int)
    way = Capacity(expert_capacity=slots)
    y, aux = run(layer, x, routing=ids, execution=way)
    assert not y[slots:].any()
    assert y[:slots].all()
    assert aux.kept.tolist() == [slots, 0]

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(moving):
        layer, x = moving
        return (
            layer(x, routing=ids, execution=way)[0] * jnp.arange(1.0, 4)[:, None].astype(x.dtype)
        ).sum()

    of_layer, of_x = gradient((layer, x))
    assert not of_x[slots:].any()
    assert of_x[:slots].all()
    if not slots:
        assert not any(
            np.asarray(leaf).any() for leaf in (of_layer.router.weight, of_layer.experts.w_in)
        )


def test_survivors_keep_their_weight():
    """Weights 1/2 and 1/2; the slot that is left still counts half."""
    layer = constant_experts([[2.0], [4.0]], k=2)
    ids = jnp.array([[0, 1], [0, 1]])
    x = jnp.ones((2, 1), jnp.float32)
    y, aux = run(layer, x, routing=ids, execution=Capacity(expert_capacity=1))
    assert y.tolist() == [[3.0], [0.0]]
    assert aux.routing.weights.tolist() == [[0.5, 0.5]] * 2
    layer = constant_experts([[2.0], [4.0]], k=2, renormalize="sum")
    y, _ = run(
        layer, x, routing=jnp.array([[0, 1], [0, -1]]), execution=Capacity(expert_capacity=1)
    )
    assert y.tolist() == [[3.0], [0.0]]


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "factor", "ceil", "floor"),
    [
        (2, 2, 2, 2.0, 4, 4),
        (2, 2, 1, 8.0, 2, 2),
        (3, 8, 1, 1.0, 1, 0),
        (7, 4, 2, 1.25, 5, 4),
        (100, 1, 1, 1.1, 100, 100),
        (100, 2, 1, 1.1, 55, 55),
        (100, 10, 10, 1.1, 110, 110),
        (7, 4, 2, 0.0, 0, 0),
    ],
)
def test_slots_are_rounded_as_named_without_float_error(tokens, experts, k, factor, ceil, floor):
    """100 * 1.1 is 110.00000000000001 in binary; at most every slot there is."""
    for rounding, wanted in (("ceil", ceil), ("floor", floor)):
        capacity = CapacitySpec(capacity_factor=factor, capacity_rounding=rounding)
        assert capacity.slots(tokens=tokens, k=k, num_experts=experts) == wanted
        ids = jax.ShapeDtypeStruct((tokens, k), jnp.int32)
        make = functools.partial(plan_capacity, num_experts=experts, capacity=capacity)
        assert jax.eval_shape(make, ids).slot.shape == (experts * wanted,)


def test_a_capacity_of_0_is_not_no_capacity():
    layer = constant_experts([[2.0], [4.0]], k=2)
    x = jnp.ones((2, 1), jnp.float32)
    for nothing in (Capacity(expert_capacity=0), Capacity(capacity_factor=0.0)):
        y, aux = run(layer, x, execution=nothing)
        assert y.tolist() == [[0.0]] * 2
        assert aux.kept.tolist() == [0, 0]
    with pytest.raises(ValueError, match="`Capacity` must be given expert_capacity or"):
        run(layer, x, execution=Capacity())
