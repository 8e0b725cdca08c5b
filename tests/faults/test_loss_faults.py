"""Public faults of balance and z losses, each as the small case that shows it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref.routing import balance_loss, expert_load, route, update_selection_bias, z_loss
from moe_ref.spec import RouterSpec

ONE_OF_FOUR = RouterSpec(num_experts=4, k=1)


@functools.partial(jax.jit, static_argnames=("spec", "divide_by_k"))
def balance(logits, spec, mask=None, **options):
    return balance_loss(route(logits, spec, mask=mask), spec=spec, mask=mask, **options)


def test_padding_enters_neither_loss():
    """Four tokens in perfect balance and four of padding that all like expert 0."""
    real = 20 * jnp.eye(4, dtype=jnp.float32)
    mask = jnp.arange(8) < 4
    padded = jnp.concatenate([real, jnp.tile(real[:1], (4, 1))])
    assert float(balance(padded, ONE_OF_FOUR, mask)) == 1
    assert float(balance(padded, ONE_OF_FOUR)) == 1.75
    silent = jnp.where(mask[:, None], padded, 0)
    assert float(z_loss(silent, mask=mask)) == 400
    assert float(z_loss(silent)) < 400
    for filler in (np.nan, np.inf):
        dirty = jnp.where(mask[:, None], padded, filler)
        assert float(balance(dirty, ONE_OF_FOUR, mask)) == 1
        assert float(z_loss(dirty, mask=mask)) == 400


def test_nothing_but_padding_costs_nothing():
    """0 with gradient 0, not 0 / 0."""
    mask = jnp.zeros(4, bool)

    def total(logits):
        return balance(logits, ONE_OF_FOUR, mask) + z_loss(logits, mask=mask)

    value, gradient = jax.value_and_grad(total)(jnp.full((4, 4), np.nan, jnp.float32))
    assert value == 0
    assert not gradient.any()


def test_padding_moves_no_bias():
    """The load that steers the selection bias counts real tokens only."""
    mask = jnp.arange(8) < 4
    logits = jnp.concatenate([20 * jnp.eye(4), jnp.tile(jnp.array([[20.0, 0, 0, 0]]), (4, 1))])
    routing = route(logits, ONE_OF_FOUR, mask=mask)
    load = expert_load(routing.experts, num_experts=4)
    assert load.tolist() == [1] * 4
    bias = jnp.zeros(4)
    assert (update_selection_bias(bias, load, rate=0.5) == bias).all()


def test_layers_do_not_cancel():
    """Opposite imbalance in two layers: each costs 2, and so does their mean.

    Concatenating their tokens first would give 1, as if all were in balance.
    """
    spec = RouterSpec(num_experts=2, k=1)
    layers = [jnp.tile(jnp.array([row], jnp.float32), (4, 1)) for row in ([20, 0], [0, 20])]
    assert [float(balance(logits, spec)) for logits in layers] == [2.0, 2.0]
    assert float(balance(jnp.concatenate(layers), spec)) == 1.0
    milder = layers[0] / 20
    assert jax.grad(lambda logits: balance(logits, spec))(milder).all()


@pytest.mark.parametrize("k", [1, 2, 8])
def test_division_by_k_is_a_named_choice(k):
    """k times the value, exactly; at equal use of the experts 1 and k."""
    spec = RouterSpec(num_experts=8, k=k)
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((64, 8)))
    assert float(balance(logits, spec, divide_by_k=False)) == k * float(balance(logits, spec))
    ids = (jnp.arange(8)[:, None] + jnp.arange(k)[None, :]) % 8
    even = route(jnp.zeros((8, 8)), spec, experts=ids)
    assert float(balance_loss(even, spec=spec)) == 1
    assert float(balance_loss(even, spec=spec, divide_by_k=False)) == k


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus"])
def test_gradient_at_perfect_balance_is_finite(score):
    """Also through a router whose weight is 0, compiled and not."""
    spec = RouterSpec(num_experts=4, k=1, score=score)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)))

    def total(weight):
        logits = x @ weight.T
        return balance(logits, spec) + z_loss(logits)

    for transform in (lambda f: f, jax.jit):
        assert jnp.isfinite(transform(jax.grad(total))(jnp.zeros((4, 3)))).all()


@pytest.mark.parametrize("logit", [0.0, -45.0, -60.0, -80.0])
def test_small_sigmoids_do_not_hide_imbalance(logit):
    """All tokens on expert 0, at any offset: P still sums to 1, the loss is not below 1.

    Its gradient is finite and the same at each offset that leaves the sigmoids in proportion.
    """
    spec = RouterSpec(num_experts=4, k=1, score="sigmoid")
    logits = jnp.full((4, 4), logit, jnp.float32)
    value, gradient = jax.value_and_grad(lambda logits: balance(logits, spec))(logits)
    assert value == 1
    assert jnp.isfinite(gradient).all()
    assert (gradient[:, 0] > 0).all()
    assert (gradient[:, 1:] < 0).all()


def test_reported_logits_are_logits():
    """Not probabilities: a z-loss of what is reported is the z-loss of what went in."""
    logits = jnp.array([[3.0, 0, 0, 0]])
    spec = RouterSpec(num_experts=4, k=2, renormalize="sum", scale=2.0)
    routing = route(logits, spec)
    assert (routing.logits == logits).all()
    assert z_loss(routing.logits) == z_loss(logits) > 9 > z_loss(routing.scores)
