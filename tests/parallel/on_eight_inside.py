"""Inside `jax.shard_map`, on eight virtual devices: gradients, and losses over all ranks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from moe_ref import oracle
from moe_ref.parallel import ExpertParallel
from moe_ref.routing import update_selection_bias
from parallel.cases import EMULATED, FULL, E, made, mesh_of, poisoned, truth_of, zipf
from properties.judge import assert_within, compiled, named, random_layer, verdict

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
TOKENS = 48
WAYS = {
    "rounds": ({"expert": 8}, ("expert",), {}),
    "nodes, ragged": ({"node": 2, "gpu": 4}, ("node", "gpu"), EMULATED),
    "data and tensor": (
        {"data": 2, "expert": 2, "tensor": 2}, "expert",
        {"data": ("data",), "transport": "alltoall"},
    ),
}  # fmt: skip


def execution(name: str):
    sizes, axes, options = WAYS[name]
    mesh = mesh_of(**sizes)
    return mesh, ExpertParallel(mesh, axes, implementation="loop", **options)


def specs_of(way, layer):
    return jax.tree.map(lambda sharding: sharding.spec, way.shardings(layer))


@compiled
def inside(way, mesh, layer, x, cotangent, ids):
    """Value and gradients, both taken by one rank."""
    tokens = jax.P(way.settings.layout.tokens)
    moving, fixed = eqx.partition(layer, eqx.is_inexact_array)
    specs = specs_of(way, moving)

    def rank(moving, x, cotangent, ids):
        def run(moving, x):
            y, aux = eqx.combine(moving, fixed)(x, routing=ids, execution=way)
            return y, (aux.routing.weights, aux.load, aux.kept, aux.overflow)

        y, back, aux = jax.vjp(run, moving, x, has_aux=True)
        return y, aux, back(cotangent)

    whole = jax.P()
    return jax.shard_map(
        rank,
        mesh=mesh,
        in_specs=(specs, tokens, tokens, tokens),
        out_specs=(tokens, (tokens, whole, whole, whole), (specs, tokens)),
    )(moving, x, cotangent, ids)


@pytest.mark.parametrize(
    "name", [pytest.param("rounds", marks=pytest.mark.thorough), "nodes, ragged", "data and tensor"]
)
def test_gradients_of_a_rank_are_the_dense_ones(name):
    mesh, way = execution(name)
    layer, x, cotangent, ids, truth, pulled = truth_of(FULL, zipf, TOKENS, "float32", None)
    y, (weights, load, kept, overflow), (for_layer, for_x) = inside(
        way, mesh, layer, x, cotangent, ids
    )
    aux = type("Aux", (), {"routing": type("Routing", (), {"weights": weights})})
    verdict(truth, pulled, (y, aux, {"x": for_x} | named(for_layer)), name)
    np.testing.assert_array_equal(load, np.bincount(np.asarray(ids).ravel(), minlength=E))
    np.testing.assert_array_equal(kept, load)
    assert not np.asarray(overflow).any()


def test_losses_and_bias_updates_are_of_all_ranks():
    spec = FULL.replace(d_model=E, d_latent=None, router_bias=False, logit_softcap=None)
    layer = random_layer(spec, dtype="float32", seed=0, plain_router=True)
    mesh, way = execution("nodes, ragged")
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.standard_normal((TOKENS, E)) * 2, jnp.float32)
    # The ranks' numbers of real tokens differ, so a mean of means would be wrong.
    mask = jnp.asarray(rng.random(TOKENS) < np.linspace(0.1, 1, TOKENS))
    cotangent = np.array([1.0, 0.3], np.float32)

    def rank(layer, x, mask):
        def losses(x):
            _, aux = layer(x, mask=mask, execution=way)
            both = jnp.stack([aux.losses.balance, aux.losses.z])
            return jnp.vdot(both, cotangent), (both, aux)

        dx, (both, aux) = jax.grad(losses, has_aux=True)(x)
        bias = update_selection_bias(layer.router.selection_bias, aux.load, rate=1.0)
        own = jnp.sum(jax.nn.one_hot(aux.routing.experts, E, dtype=jnp.int32), axis=(0, 1))
        alone = update_selection_bias(layer.router.selection_bias, own, rate=1.0)
        return both, dx, aux.routing.experts, aux.load, bias, lax.psum(alone, ("node", "gpu"))

    tokens, whole = jax.P(("node", "gpu")), jax.P()
    run = jax.shard_map(
        rank,
        mesh=mesh,
        in_specs=(specs_of(way, layer), tokens, tokens),
        out_specs=(whole, tokens, tokens, whole, whole, whole),
    )
    both, dx, ids, load, bias, alone = jax.jit(run)(layer, x, mask)
    truth = oracle.losses(x, ids, spec.router, mask=mask)
    assert_within(both, truth.losses, "losses")
    np.testing.assert_array_equal(load, truth.load)
    old = np.asarray(layer.router.selection_bias)
    np.testing.assert_array_equal(bias - old, truth.step)
    assert (np.sign(np.asarray(alone) - 8 * old) != np.sign(truth.step)).any(), "same without sum"
    wanted = oracle.losses_vjp(x, ids, spec.router, cotangent, mask=mask)
    assert_within(dx, wanted, "dx")
    assert (np.abs(wanted.value).max(axis=1) > wanted.bound.max(axis=1))[np.asarray(mask)].all()


def test_wrong_part_of_the_experts():
    mesh, way = execution("rounds")
    layer = made(FULL)
    x = jnp.zeros((TOKENS, FULL.d_model), jnp.float32)
    run = jax.shard_map(
        lambda layer, x: layer(x, execution=way)[0],
        mesh=mesh, in_specs=(jax.P(), jax.P("expert")), out_specs=jax.P("expert"),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"`experts` must be the 2 of one rank.*; got 16"):
        jax.eval_shape(run, layer, x)
