"""Executions under given ids and weights: value, and gradients of x, weights and experts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_ref import oracle
from moe_ref.conformance import strategies
from moe_ref.experts import Experts
from moe_ref.layers import Capacity, Dense, Dropless
from moe_ref.spec import CapacitySpec, ExpertSpec, LayerSpec, RouterSpec
from properties.judge import assert_within

TOKENS, K, NUM, D = 7, 3, 5, 6
ROUTER = RouterSpec(num_experts=NUM, k=K)
EXPERTS = {
    "silu": {"activation": "silu"},
    "silu-clamped": {
        "activation": "silu", "swiglu_alpha": 1.7, "swiglu_limit": 0.5, "up_offset": 1.0,
        "expert_bias": True,
    },
    "gelu": {"activation": "gelu", "expert_bias": True},
    "gelu-tanh": {"activation": "gelu_tanh"},
    "relu": {"activation": "relu"},
    "relu-squared-alone": {"activation": "relu_squared", "gated": False, "expert_bias": True},
    "silu-alone": {"activation": "silu", "gated": False},
}  # fmt: skip
SITES = ["output", "hidden", "input"]
CASES = [(name, SITES[i % 3]) for i, name in enumerate(EXPERTS)]
LIMITED = CapacitySpec(expert_capacity=2, drop_order="k_major")


def layer_spec(name: str, site: str) -> LayerSpec:
    return LayerSpec(
        d_model=D,
        router=ROUTER,
        experts=ExpertSpec(d_hidden=4, **EXPERTS[name]),
        weight_site=site,
    )


def random_experts(spec: LayerSpec, rng: np.random.Generator) -> Experts:
    e = spec.experts

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape) * shape[-2] ** -0.5)

    bias = e.expert_bias
    return Experts(
        w_in=draw(NUM, D, e.columns),
        w_out=draw(NUM, e.d_hidden, D),
        b_in=draw(NUM, e.columns) if bias else None,
        b_out=draw(NUM, D) if bias else None,
    )


@functools.cache
def executed(name: str, site: str):
    spec = layer_spec(name, site)
    ways = {
        "dense": Dense(),
        "dropless": Dropless("loop"),
        "capacity": Capacity(expert_capacity=TOKENS * K),
        "dropping": Capacity(expert_capacity=2, drop_order="k_major"),
    }

    def run(x, ids, weights, experts, cotangent):
        results = {}
        for way, execution in ways.items():
            y, back, kept = jax.vjp(
                lambda x, w, e, run=execution: run(x, ids, w, e, spec=spec),
                x,
                weights,
                experts,
                has_aux=True,
            )
            results[way] = y, kept, back(cotangent)
        return results

    return jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})


@pytest.mark.parametrize(("name", "site"), CASES)
@settings(max_examples=max(1, settings.default.max_examples // 5))
@given(data=st.data())
def test_given_weights(name, site, data):
    spec = layer_spec(name, site)
    rng = np.random.default_rng(data.draw(strategies.seeds()))
    experts = random_experts(spec, rng)
    x, cotangent = (jnp.asarray(rng.standard_normal((TOKENS, D))) for _ in range(2))
    weights = jnp.asarray(rng.standard_normal((TOKENS, K)))
    ids = data.draw(strategies.routings(tokens=TOKENS, k=K, num_choices=NUM))
    given = {"routing": {"experts": ids, "weights": weights}}
    truths = {
        limit: (
            oracle.layer(x, {"experts": experts}, spec.replace(capacity=limit), **given),
            oracle.layer_vjp(
                x, {"experts": experts}, spec.replace(capacity=limit), cotangent, **given
            ),
        )
        for limit in (None, LIMITED)
    }
    for way, result in executed(name, site)(x, ids, weights, experts, cotangent).items():
        y, kept, (dx, dw, de) = result
        truth, pulled = truths[LIMITED if way == "dropping" else None]
        assert (np.asarray(kept) == truth.kept).all()
        assert_within(y, truth.output, f"{way} y")
        assert_within(dx, pulled.x, f"{way} dx")
        assert_within(dw, pulled.weights, f"{way} dweights")
        for part in ("w_in", "w_out", "b_in", "b_out"):
            if getattr(experts, part) is not None:
                assert_within(getattr(de, part), getattr(pulled.experts, part), f"{way} d{part}")


def test_capacity_arguments():
    with pytest.raises(ValueError, match=r"`expert_capacity` must be given, or `capacity_factor`"):
        Capacity(expert_capacity=1, capacity_factor=1.0)
    with pytest.raises(ValueError, match=r"must be given with a rounding or an order; got .*floor"):
        Capacity(capacity_rounding="floor")
    with pytest.raises(ValueError, match=r"`expert_capacity` must be at least 0; got -1"):
        Capacity(expert_capacity=-1)
    spec = layer_spec("silu", "output")
    experts = random_experts(spec, np.random.default_rng(0))
    x, ids, weights = jnp.zeros((2, D)), jnp.zeros((2, K), int), jnp.zeros((2, K))
    with pytest.raises(
        ValueError, match=r"`Capacity` must be given expert_capacity .* got neither"
    ):
        Capacity()(x, ids, weights, experts, spec=spec)
    with pytest.raises(
        ValueError, match=r"`implementation` must be one of .*blocked.*; got 'fast'"
    ):
        Dropless("fast")(x, ids, weights, experts, spec=spec)
