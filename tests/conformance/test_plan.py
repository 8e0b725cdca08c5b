"""What is asked of the checks of `plan` alone."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.mutant_rules import judge
from moe_ref import conformance, oracle
from moe_ref.conformance.mutants._plan import CORRECT
from moe_ref.conformance.mutants._plan_kernel import Plan
from moe_ref.conformance.suite._plan_cases import audible_weights, factors


def test_every_slot_is_louder_than_the_bound():
    """Leaving out any one slot is noticed, so no weight of the suite is too small to count."""
    rng = np.random.default_rng(0)
    scale, ids = factors(rng, 8), np.stack([rng.permutation(8)[:3] for _ in range(40)])
    weights, x = audible_weights(rng, ids, scale), rng.standard_normal((40, 8))
    x, weights, scale = (a.astype(jnp.bfloat16) for a in (x, weights, scale))
    truth = oracle.combine(x, ids, weights, scale)
    for slot in range(3):
        fewer = weights.copy()
        fewer[:, slot] = 0
        without = oracle.combine(x, ids, fewer, scale).value
        missed = oracle.ratio(without, truth.value, truth.bound).max(axis=1)
        assert missed.min() > 1


@pytest.mark.parametrize("id", ["PLN-32", "PLN-55", "EXC-52", "EXC-68"])
def test_no_gradient_of_weights_cancels(id):
    """A token whose products with its cotangent add up to nearly 0 would tell nothing."""
    check = next(c for c in conformance.checks() if c.id == id)
    for seed, dtype in itertools.product(range(3), ("float32", "bfloat16")):
        for case in check.cases(np.random.default_rng(seed), dtype, "smoke"):
            x, cotangent = (case.arrays[n].astype(np.float64) for n in ("x", "cotangent"))
            signs = np.sign(x * cotangent)
            assert (abs(signs.sum(axis=-1)) == abs(signs).sum(axis=-1)).all(), case.label


def test_a_jax_plan_with_a_capacity_is_judged():
    """What the call does between there and back is right for JAX too, gradients included."""

    def plan(x, experts, num_experts, capacity=None):
        rows = jnp.where(experts.reshape(-1) >= 0, experts.reshape(-1), num_experts)
        slots = jnp.argsort(rows, stable=True)
        sizes = jnp.bincount(experts.reshape(-1) + 1, length=num_experts + 1)[1:]
        number = x.shape[0] * experts.shape[1] if capacity is None else capacity
        place = jnp.zeros(slots.shape, int).at[slots].set(jnp.arange(slots.size))
        place = place - (jnp.cumsum(sizes) - sizes)[experts.reshape(-1)]
        kept = (experts.reshape(-1) >= 0) & (place < number)
        row = jnp.where(kept, experts.reshape(-1) * number + place, num_experts * number)
        copies = jnp.repeat(x, experts.shape[1], axis=0)
        padded = jnp.zeros((num_experts * number, x.shape[1]), x.dtype)
        padded = padded.at[row].set(copies, mode="drop")

        def unpermute(rows, weights):
            spare = jnp.zeros((1, rows.shape[1]), rows.dtype)  # a gather wants some row
            back = jnp.concatenate([rows, spare]).at[row].get(mode="fill", fill_value=0)
            own = jnp.where(kept, weights.reshape(-1).astype(jnp.float32), 0)
            return (own[:, None] * back).reshape(*experts.shape, -1).sum(axis=1).astype(x.dtype)

        return padded, jnp.minimum(sizes, number), unpermute

    implementation = conformance.Implementation(
        name="padded", op="plan", function=plan, capacity=True, dtypes=("float32",)
    )
    capacity = [c.id for c in conformance.checks("plan") if c.needs == "capacity"]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        results = judge(implementation, only=capacity)
    assert {r.id: (r.status, r.detail) for r in results if r.status != "pass"} == {}


def test_rows_that_no_expert_owns_are_poisoned():
    """The call multiplies them with NaN, with a capacity between the experts too."""

    class Reads(Plan):
        def unpermute(self, rows, weights, experts, layout, x):
            assert np.isnan(rows[~np.isin(np.arange(len(rows)), layout.row)]).all()
            return super().unpermute(rows, weights, experts, layout, x)

        def permute(self, x, layout):
            return np.nan_to_num(super().permute(x, layout))

    kernel = dataclasses.replace(CORRECT[0], function=Reads().value, vjp=None, gradients=False)
    results = judge(kernel, only=["PLN-07", "PLN-43", "PLN-45"])
    assert {r.id: (r.status, r.detail) for r in results if r.status != "pass"} == {}
