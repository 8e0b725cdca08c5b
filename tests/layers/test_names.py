"""What the backward pass keeps goes by names, and gradients do not depend on it."""

import equinox as eqx
import jax
import numpy as np
import pytest

from layers.small import SMALL, made, x_of

TOKENS = 5
ROWS = TOKENS * SMALL.router.k
SHAPES = {
    "moe_rows": (ROWS, SMALL.d_model),
    "moe_projected": (ROWS, SMALL.experts.columns),
    "moe_hidden": (ROWS, SMALL.experts.d_hidden),
}


def pulled(policy):
    """The gradients of the sum of the results, and the shapes of what was kept for them."""
    arrays, static = eqx.partition(made(SMALL), eqx.is_array)

    def total(arrays, x):
        return eqx.combine(arrays, static)(x)[0].sum()

    _, pull = jax.vjp(jax.checkpoint(total, policy=policy), arrays, x_of(SMALL, TOKENS))
    kept = {leaf.shape for leaf in jax.tree.leaves(pull) if isinstance(leaf, jax.Array)}
    return pull(np.float32(1)), kept & set(SHAPES.values())


@pytest.mark.parametrize("name", SHAPES)
def test_a_policy_keeps_what_it_names(name):
    everything, _ = pulled(jax.checkpoint_policies.everything_saveable)
    gradients, kept = pulled(jax.checkpoint_policies.save_only_these_names(name))
    assert kept == {SHAPES[name]}
    for one, other in zip(*map(jax.tree.leaves, (gradients, everything)), strict=True):
        np.testing.assert_array_equal(one, other)  # the same operations, one by one


def test_or_nothing():
    assert pulled(jax.checkpoint_policies.nothing_saveable)[1] == set()
