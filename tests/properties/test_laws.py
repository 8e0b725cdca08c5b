"""Laws: what happens to the output when the input is rearranged.

A law says that two executions agree. Each is held against the oracle's result for the one input,
so a fault that both share is found too.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.layers import Capacity, Dense, Dropless, MoE
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec
from properties.judge import assert_gradients, assert_within, compiled, named, pull, random_layer

TOKENS, D = 12, 8
WAYS = {
    "dense": Dense(),
    "dropless": Dropless(),
    "capacity": Capacity(expert_capacity=64),
}
EXPERTS = ExpertSpec(d_hidden=6, expert_bias=True)
# Groups, a selection bias, a shared expert behind a gate; and a router bias without any of them.
GROUPED = LayerSpec(
    d_model=D,
    router=RouterSpec(
        num_experts=8,
        k=3,
        score="sigmoid",
        selection_bias=True,
        num_groups=4,
        groups_kept=2,
        group_score="sum_top",
        renormalize="sum",
        scale=2.5,
    ),
    experts=EXPERTS,
    shared_d_hidden=5,
    shared_gate=True,
)
PLAIN = LayerSpec(
    d_model=D,
    router=RouterSpec(num_experts=5, k=2, router_bias=True, renormalize="sum"),
    experts=EXPERTS,
)
SPECS = {"grouped": GROUPED, "plain": PLAIN}
every_way = pytest.mark.parametrize("way", WAYS)
every_spec = pytest.mark.parametrize("name", SPECS)


@compiled
def run(layer, x, way, **arguments):
    return layer(x, execution=WAYS[way], **arguments)


@compiled
def pulled(layer, x, cotangent, way, **arguments):
    return pull(lambda m, x: m(x, execution=WAYS[way], **arguments), layer, x, cotangent)


def problem(spec: LayerSpec, seed: int = 0):
    """A layer, tokens, a cotangent, and what the oracle says about them."""
    layer = random_layer(spec, dtype="float64", seed=seed)
    rng = np.random.default_rng(seed + 1)
    x, cotangent = (jnp.asarray(rng.standard_normal((TOKENS, D))) for _ in range(2))
    truth = oracle.layer(x, layer, spec)
    assert not truth.ambiguous.any()
    return layer, x, cotangent, truth


def assert_tokens(y, truth: oracle.LayerResult, tokens, what: str):
    assert_within(y, truth.output[np.asarray(tokens)], what)


def ids_of(aux):
    return np.asarray(aux.routing.experts)


@every_way
@every_spec
def test_permuting_the_tokens_permutes_the_output(name, way):
    """And the gradient of x; the gradients of the parameters stay."""
    spec = SPECS[name]
    layer, x, cotangent, truth = problem(spec)
    order = np.random.default_rng(5).permutation(TOKENS)
    y, aux, gradients = pulled(layer, x[order], cotangent[order], way)
    assert (ids_of(aux) == truth.routing.experts[order]).all()
    assert_tokens(y, truth, order, "y")
    back = oracle.layer_vjp(x, layer, spec, cotangent)
    gradients["x"] = gradients["x"][np.argsort(order)]
    assert_gradients(gradients, back, "permuted")


def relabelled(layer: MoE, order: np.ndarray) -> MoE:
    """Expert e becomes the one that was order[e]."""
    return eqx.tree_at(
        lambda m: (m.router, m.experts),
        layer,
        jax.tree.map(lambda leaf: leaf[order], (layer.router, layer.experts)),
    )


@every_way
@every_spec
def test_relabelling_the_experts_changes_only_their_names(name, way):
    """Experts move within their group and groups move as a whole: router, biases and all."""
    spec = SPECS[name]
    layer, x, cotangent, truth = problem(spec)
    rng = np.random.default_rng(6)
    groups = rng.permutation(np.arange(spec.router.num_experts).reshape(spec.router.num_groups, -1))
    order = rng.permuted(groups, axis=1).ravel()
    y, aux, gradients = pulled(relabelled(layer, order), x, cotangent, way)
    assert (order[ids_of(aux)] == truth.routing.experts).all()
    assert_tokens(y, truth, range(TOKENS), "y")
    back = oracle.layer_vjp(x, layer, spec, cotangent)
    inverse = np.argsort(order)
    for parameter in gradients:
        if parameter.startswith(("router.", "experts.")):
            gradients[parameter] = gradients[parameter][inverse]
    assert_gradients(gradients, back, "relabelled")


@every_way
def test_splitting_the_batch_changes_nothing(way):
    layer, x, cotangent, truth = problem(GROUPED)
    first, second = (
        pulled(layer, x[part], cotangent[part], way) for part in (slice(0, 5), slice(5, None))
    )
    assert_tokens(jnp.concatenate([first[0], second[0]]), truth, range(TOKENS), "y")
    back = oracle.layer_vjp(x, layer, GROUPED, cotangent)
    dx = jnp.concatenate([first[2].pop("x"), second[2].pop("x")])
    assert_gradients({"x": dx}, back, "split")
    # One more addition joins the parts of a parameter's gradient: its rounding is another step.
    for parameter, gradient in first[2].items():
        if parameter != "router.selection_bias":
            total = np.asarray(gradient) + np.asarray(second[2][parameter])
            assert_gradients({parameter: total}, back, "split")


@every_way
def test_a_token_given_twice_is_routed_and_computed_twice(way):
    layer, x, cotangent, truth = problem(GROUPED)
    tokens = np.array([3, 3, 0, 7, 3, 0, 1, 2, 3, 3, 4, 3])
    y, aux, gradients = pulled(layer, x[tokens], cotangent, way)
    assert (ids_of(aux) == truth.routing.experts[tokens]).all()
    assert_tokens(y, truth, tokens, "y")
    back = oracle.layer_vjp(x[tokens], layer, GROUPED, cotangent)
    assert_gradients(gradients, back, "duplicated")


@every_way
def test_an_expert_nobody_can_reach_changes_nothing(way):
    """A sixth expert behind a logit of -1e4, its matrices full of NaN: gradient exactly 0."""
    layer, x, cotangent, truth = problem(PLAIN)
    wider = PLAIN.replace(num_experts=6)

    def with_one_more(leaf, value):
        return jnp.concatenate([leaf, jnp.full_like(leaf[:1], value)])

    experts = jax.tree.map(lambda leaf: with_one_more(leaf, jnp.nan), layer.experts)
    router = {
        "weight": with_one_more(layer.router.weight, 0),
        "bias": with_one_more(layer.router.bias, -1e4),
    }
    arrays = {"router": router, "experts": {n: getattr(experts, n) for n in named(experts)}}
    y, aux, gradients = pulled(MoE.from_arrays(wider, arrays), x, cotangent, way)
    assert (ids_of(aux) == truth.routing.experts).all()
    assert aux.load.tolist()[5] == 0
    assert_tokens(y, truth, range(TOKENS), "y")
    back = oracle.layer_vjp(x, layer, PLAIN, cotangent)
    for parameter in gradients:
        if parameter != "x":
            assert not np.asarray(gradients[parameter][5]).any(), parameter
            gradients[parameter] = gradients[parameter][:5]
    assert_gradients(gradients, back, "wider")


@every_way
def test_the_sum_over_slots_is_linear_in_the_experts_outputs(way):
    """Doubling every down projection and its bias doubles the routed output, bit by bit."""
    layer, x, _, _ = problem(PLAIN)
    parts = (layer.experts.w_out, layer.experts.b_out)
    doubled = eqx.tree_at(
        lambda m: (m.experts.w_out, m.experts.b_out), layer, tuple(2 * part for part in parts)
    )
    y, _ = run(layer, x, way)
    assert (run(doubled, x, way)[0] == 2 * y).all()


@every_way
def test_mapping_over_batches_is_a_loop_over_batches(way):
    layer = random_layer(GROUPED, dtype="float64", seed=0)
    rng = np.random.default_rng(1)
    x, cotangent = (jnp.asarray(rng.standard_normal((3, 4, D))) for _ in range(2))
    one = eqx.filter_vmap(pulled, in_axes=(None, 0, 0, None))
    y, aux, gradients = one(layer, x, cotangent, way)
    for i in range(3):
        truth = oracle.layer(x[i], layer, GROUPED)
        back = oracle.layer_vjp(x[i], layer, GROUPED, cotangent[i])
        assert (ids_of(aux)[i] == truth.routing.experts).all()
        assert_within(y[i], truth.output, f"batch {i} y")
        assert_gradients({n: g[i] for n, g in gradients.items()}, back, f"batch {i}")


@pytest.mark.parametrize("way", ["dropless", "capacity"])
def test_uncompiled_is_compiled(way):
    layer, x, _, truth = problem(PLAIN)
    y, aux = layer(x, execution=WAYS[way])
    assert (ids_of(aux) == truth.routing.experts).all()
    assert_tokens(y, truth, range(TOKENS), "y")


@every_way
def test_replay_reaches_the_router(way):
    """Recorded ids: the router's gradient is that of the live choice, and is not 0."""
    layer, x, cotangent, truth = problem(GROUPED)
    _, _, gradients = pulled(layer, x, cotangent, way, routing=jnp.asarray(truth.routing.experts))
    assert gradients["router.weight"].any()
    assert_gradients(gradients, oracle.layer_vjp(x, layer, GROUPED, cotangent), "replayed")


SIZES = {
    "no tokens": (GROUPED, 0),
    "one expert": (PLAIN.replace(num_experts=1, k=1, renormalize="none"), TOKENS),
    "every expert": (PLAIN.replace(k=5), TOKENS),
}


@every_way
@pytest.mark.parametrize(("spec", "tokens"), SIZES.values(), ids=SIZES)
def test_extreme_sizes(spec, tokens, way):
    layer, x, cotangent, _ = problem(spec)
    x, cotangent = x[:tokens], cotangent[:tokens]
    truth = oracle.layer(x, layer, spec)
    y, aux, gradients = pulled(layer, x, cotangent, way)
    assert (ids_of(aux) == truth.routing.experts).all()
    assert_within(y, truth.output, "y")
    assert_gradients(gradients, oracle.layer_vjp(x, layer, spec, cotangent), "sizes")
    assert np.isfinite([aux.losses.balance, aux.losses.z]).all()
