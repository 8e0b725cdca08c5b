"""Rows that cross as MX codes, on a mesh of one device."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import mx, oracle
from moe_ref.layers import MoE
from moe_ref.parallel import ExpertParallel, _codes
from moe_ref.spec import MXSpec
from parallel.cases import EMULATED, FULL, PLAIN, E, K, made, mesh_of, zipf
from properties.judge import assert_within, compiled

FORMAT = "mxfp8_e4m3"


@compiled
def run(layer, x, ids, execution):
    y, aux = layer(x, routing=ids, execution=execution)
    return y, aux.routing.weights


def test_router_and_shared_expert_read_x_itself():
    """Experts that give 0 leave the shared expert alone."""
    layer, tokens = made(FULL), 12
    still = [jnp.zeros_like(a) for a in (layer.experts.w_out, layer.experts.b_out)]
    layer = eqx.tree_at(lambda m: [m.experts.w_out, m.experts.b_out], layer, still)
    rng = np.random.default_rng(0)
    x, ids = rng.standard_normal((tokens, FULL.d_model)).astype(np.float32), zipf(rng, tokens, K, E)
    way = ExpertParallel(mesh_of(expert=1), implementation="loop", wire=FORMAT)
    y, weights = run(layer, jnp.asarray(x), jnp.asarray(ids), way)
    q = oracle.quantize(x, FORMAT, axis=-1)
    coarse = oracle.dequantize(q.elements, q.scales, FORMAT, axis=-1).astype(np.float32)
    truth, other = (oracle.layer(a, layer, FULL, experts=ids) for a in (x, coarse))
    assert_within(y, truth.output, "y")
    assert_within(weights, truth.routing.weights, "weights")
    for got, wrong in ((y, other.output), (weights, other.routing.weights)):
        assert (oracle.ratio(np.asarray(got), wrong.value, wrong.bound) > 1).any()


@pytest.mark.parametrize(
    "options", [{}, {"transport": "alltoall", "chunks": 2}, {"transport": "allgather"}, EMULATED]
)
def test_a_row_is_quantised_once(monkeypatch, options):
    """However many axes it crosses."""
    calls = []

    def counted(*arguments, **options):
        calls.append(options)
        return mx.quantize(*arguments, **options)

    monkeypatch.setattr(_codes, "quantize", counted)
    wire = MXSpec(format="mxfp8_e5m2", rule="even", nonfinite="te")
    way = ExpertParallel(mesh_of(node=1, gpu=1), ("node", "gpu"), wire=wire, **options)
    layer = jax.eval_shape(lambda: MoE(PLAIN, key=jax.random.key(0)))
    x = jax.ShapeDtypeStruct((8, PLAIN.d_model), jnp.float32)

    def loss(layer, x):
        return jnp.sum(layer(x, execution=way)[0])

    jax.eval_shape(jax.grad(loss, argnums=1), layer, x)
    assert [(c["rule"], c["nonfinite"]) for c in calls] == [("even", "te")]


def test_names():
    mesh = mesh_of(expert=1)
    by_name, by_spec = (ExpertParallel(mesh, wire=wire) for wire in (FORMAT, MXSpec()))
    assert by_name == by_spec
    with pytest.raises(ValueError, match=r"`wire` must be one of .*mxfp8_e5m2.*; got 'fp8'"):
        ExpertParallel(mesh, wire="fp8")


def test_float64_is_refused():
    way = ExpertParallel(mesh_of(expert=1), wire=FORMAT)
    layer = jax.eval_shape(lambda: MoE(PLAIN, key=jax.random.key(0), dtype=jnp.float64))
    x = jax.ShapeDtypeStruct((8, PLAIN.d_model), jnp.float64)
    with pytest.raises(ValueError, match=r"`x.dtype` must be one of bfloat16, .*; got float64"):
        jax.eval_shape(lambda layer, x: layer(x, execution=way)[0], layer, x)
