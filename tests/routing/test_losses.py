"""Auxiliary losses at points where their value is known exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref.routing import Routing, balance_loss, route, z_loss
from moe_ref.spec import RouterSpec

SCORES = ["softmax", "softmax_selected", "sigmoid", "sqrt_softplus", "none"]


def dealt(k: int, experts: int = 4) -> Routing:
    """Equal logits, and every expert chosen equally often."""
    ids = (jnp.arange(experts)[:, None] + jnp.arange(k)[None, :]) % experts
    zeros = jnp.zeros((experts, experts), jnp.float32)
    return Routing(ids.astype(jnp.int32), jnp.ones(ids.shape, jnp.float32), zeros + 0.5, zeros)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_balance_is_1_or_k_at_balance(score, k):
    spec = RouterSpec(num_experts=4, k=k, score=score)
    assert float(balance_loss(dealt(k), spec=spec)) == 1
    assert float(balance_loss(dealt(k), spec=spec, divide_by_k=False)) == k


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_balance_is_at_least_1_at_any_offset(score):
    """Pushing all logits down together does not lower the loss: P sums to 1 per token."""
    spec = RouterSpec(num_experts=4, k=1, score=score)
    logits = 16 * jnp.eye(4, dtype=jnp.float32)[jnp.array([0, 0, 0, 1])]
    losses = [
        float(balance_loss(route(logits + shift, spec), spec=spec))
        for shift in jnp.asarray([0, -32, -64], jnp.float32)
    ]
    assert min(losses) > 1


def test_balance_gradient_is_the_softmax_one():
    """d/dl = E / T sum_e f_e dP_e: checked at equal logits, where P = 1 / E."""
    spec = RouterSpec(num_experts=4, k=1)
    logits = jnp.zeros((4, 4), jnp.float32)

    def loss(logits):
        return balance_loss(route(logits, spec), spec=spec)

    # All ties go to expert 0: f = (1, 0, 0, 0), and dP_0 / dl = P_0 (1[e = 0] - P_e).
    assert jax.grad(loss)(logits).tolist() == [[0.1875, -0.0625, -0.0625, -0.0625]] * 4


@pytest.mark.parametrize("score", SCORES)
def test_padding_takes_no_part(score):
    """Two real tokens, so that their mean is exact, among four that may hold anything."""
    spec = RouterSpec(num_experts=4, k=2, score=score)
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((6, 4)))
    mask = jnp.array([False, True, False, True, False, False])

    def losses(logits, mask):
        routing = route(logits, spec, mask=mask)
        return balance_loss(routing, spec=spec, mask=mask), z_loss(logits, mask=mask)

    @jax.jit
    def gradients(logits, mask):
        pairs = [jax.value_and_grad(lambda x, i=i: losses(x, mask)[i])(logits) for i in (0, 1)]
        return tuple(zip(*pairs, strict=True))

    values, wanted = gradients(logits[mask], None)
    for filler in (0.0, 1e4, np.nan, np.inf):
        found, gradient = gradients(jnp.where(mask[:, None], logits, filler), mask)
        assert found == values
        for mine, theirs in zip(gradient, wanted, strict=True):
            assert (mine[mask] == theirs).all()
            assert theirs.any()
            assert not mine[~mask].any()


@pytest.mark.parametrize("score", SCORES)
def test_only_padding_and_no_tokens_give_0(score):
    spec = RouterSpec(num_experts=4, k=2, score=score)
    none = jnp.zeros(3, bool)

    def total(logits, mask):
        routing = route(logits, spec, mask=mask)
        return balance_loss(routing, spec=spec, mask=mask) + z_loss(logits, mask=mask)

    value, gradient = jax.jit(jax.value_and_grad(total))(jnp.full((3, 4), np.nan), none)
    assert value == 0
    assert not gradient.any()
    assert total(jnp.zeros((0, 4)), None) == 0


def test_z_loss_is_the_mean_square_of_the_logsumexp():
    """A row with one finite logit has that logit as its logsumexp."""
    far = -np.inf
    logits = jnp.array([[3.0, far, far, far], [far, -5, far, far]])
    assert float(z_loss(logits)) == (9 + 25) / 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_losses_are_float32_at_least(dtype):
    spec = RouterSpec(num_experts=4, k=2, score_dtype=None)
    logits = jnp.zeros((3, 4), dtype)
    assert z_loss(logits).dtype == jnp.float32
    assert balance_loss(route(logits, spec), spec=spec).dtype == jnp.float32


def test_empty_slots_do_not_count():
    spec = RouterSpec(num_experts=4, k=2)
    routing = route(jnp.zeros((2, 4)), spec, experts=jnp.array([[0, -1], [-1, -1]]))
    assert float(balance_loss(routing, spec=spec)) == 4 * 0.25 * 0.25
