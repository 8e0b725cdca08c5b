"""Public faults of combine weights, each as the small case that shows it."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from faults.build import WAYS, constant_experts, run
from moe_ref import oracle
from moe_ref.layers import Capacity
from moe_ref.routing import route
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec, preset
from properties.judge import assert_gradients, pull, random_layer

routed = jax.jit(route, static_argnames="spec")


@pytest.mark.parametrize(("renormalize", "wanted"), [("none", 0.5), ("sum", 0.5)])
def test_selection_bias_stays_out_of_the_weights(renormalize, wanted):
    """The bias decides who is chosen; weights and their derivative do not know it."""
    spec = RouterSpec(
        num_experts=4, k=2, score="sigmoid", selection_bias=True, renormalize=renormalize
    )
    logits, bias = jnp.zeros((1, 4), jnp.float32), jnp.array([10.0, 5, 0, 0], jnp.float32)
    routing = routed(logits, spec=spec, bias=bias)
    assert routing.experts.tolist() == [[0, 1]]
    assert routing.weights.tolist() == [[wanted] * 2]
    assert routing.scores.tolist() == [[0.5] * 4]
    jacobian = jax.jacobian(lambda bias: route(logits, spec, bias).weights)(bias)
    assert not jacobian.any()


@pytest.mark.parametrize("name", ["deepseek-v3", "minimax-m2", "lfm2-moe", "glm4-moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("logit", [-40.0, -50.0, -80.0, -100.0, -1e4])
def test_scores_that_underflow_give_finite_weights_and_gradients(name, dtype, logit):
    """Where every chosen score is 0 the weights are 0, and so is the gradient of the logits.

    Before that, where scores are tiny, a quotient differentiated as numerator / denominator^2
    already overflows.
    """
    spec = (
        preset(name)
        .replace(num_experts=8, k=2, num_groups=1, groups_kept=1, group_score="none")
        .router
    )
    bias = jnp.array([1.0, 1, 0, 0, 0, 0, 0, 0], jnp.float32)
    logits = jnp.full((1, 8), logit, dtype)
    routing, back = jax.vjp(lambda logits: route(logits, spec, bias).weights, logits)
    (gradient,) = back(jnp.array([[1, -1]], routing.dtype))
    assert jnp.isfinite(routing).all()
    assert jnp.isfinite(gradient).all()
    total = float(routing.astype(jnp.float32).sum())
    assert total <= spec.scale * (1 + 2 * float(jnp.finfo(routing.dtype).eps))
    if logit == -1e4:
        assert total == 0
        assert not gradient.any()


@pytest.mark.parametrize(
    ("renormalize", "scale", "wanted"),
    [("none", 1.0, 0.7), ("sum", 1.0, 1.0), ("none", 2.5, 1.75), ("sum", 2.5, 2.5)],
)
def test_scale_and_renormalisation_are_independent(renormalize, scale, wanted):
    """Four combinations, four sums of weights."""
    spec = RouterSpec(num_experts=4, k=2, renormalize=renormalize, scale=scale)
    logits = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1]], jnp.float32))
    found = math.fsum(routed(logits, spec=spec).weights[0].tolist())
    truth = oracle.route(logits, spec).weights
    assert_near(found, truth.value.sum(), truth.bound.sum())
    # The oracle has the rounded logits, and no weight moves by more than all of them together.
    rounding = np.abs(logits).sum() * np.finfo(np.float32).eps
    assert_near(truth.value.sum(), wanted, rounding * scale)


def assert_near(actual, value, bound):
    assert (oracle.ratio([actual], np.array([value]), np.array([bound])) <= 1).all()


@pytest.mark.parametrize("site", ["output", "hidden"])
@pytest.mark.parametrize("execution", WAYS.values(), ids=WAYS)
def test_output_bias_of_an_expert_is_weighted(execution, site):
    """Two experts of bias 1 at weight 1/2 give 1, not 2; one of them alone gives 1/2."""
    layer = constant_experts([[1.0], [1.0]], k=2, weight_site=site)
    x = jnp.ones((3, 1), jnp.float32)
    ids = jnp.array([[0, 1], [0, -1], [1, 1]])
    y, _ = run(layer, x, routing=ids, execution=execution)
    assert y.tolist() == [[1.0], [0.5], [1.0]]

    def total(layer):
        return layer(x, routing=ids, execution=execution)[0].sum()

    gradient = eqx.filter_jit(eqx.filter_grad(total))(layer)
    # Sums of the weights: 1/2 + 1/2 for expert 0, 1/2 + 2 * 1/2 for expert 1.
    assert gradient.experts.b_out.tolist() == [[1.0], [1.5]]


def test_output_bias_of_a_dropped_slot_is_left_out():
    layer = constant_experts([[1.0], [1.0]], k=2)
    ids = jnp.array([[0, 1], [0, 1]])
    one = Capacity(expert_capacity=1)
    y, _ = run(layer, jnp.ones((2, 1), jnp.float32), routing=ids, execution=one)
    assert y.tolist() == [[1.0], [0.0]]


ONE = LayerSpec(
    d_model=4,
    router=RouterSpec(num_experts=4, k=1, renormalize="sum"),
    experts=ExpertSpec(d_hidden=3),
)


@pytest.mark.parametrize(
    ("spec", "learns"),
    [
        (ONE, False),
        (ONE.replace(renormalize="none"), True),
        (ONE.replace(renormalize_only_above_one=True), True),
    ],
    ids=["renormalised", "raw", "renormalised above one"],
)
def test_one_renormalised_choice_gives_the_router_no_gradient(spec, learns):
    """k = 1 and renormalised, the weight is 1 whatever the router says: exactly 0, by definition.

    Without that the gradient is there, and is the one of the calculus.
    """
    layer = random_layer(spec, dtype="float64", seed=0)
    x, cotangent = (np.random.default_rng(i).standard_normal((6, 4)) for i in (1, 2))
    run = eqx.filter_jit(lambda layer, x, cotangent: pull(lambda m, x: m(x), layer, x, cotangent))
    _, aux, gradients = run(layer, x, cotangent)
    assert bool(np.asarray(gradients["router.weight"]).any()) == learns
    if learns:
        ids = np.asarray(aux.routing.experts)
        truth = oracle.layer_vjp(x, layer, spec, cotangent, experts=ids)
        assert_gradients(gradients, truth, "layer")
    else:
        assert (np.asarray(aux.routing.weights) == 1).all()
