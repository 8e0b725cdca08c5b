"""The projection and its dtypes, and noise for its input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.routing import jitter, route, router_logits
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec

RNG = np.random.default_rng(0)
X, W, B = RNG.standard_normal((5, 6)), RNG.standard_normal((4, 6)), RNG.standard_normal(4)
RULES = {
    "plain": RouterSpec(num_experts=4, k=2),
    "bias": RouterSpec(num_experts=4, k=2, router_bias=True),
    "softcap": RouterSpec(num_experts=4, k=2, router_bias=True, logit_softcap=1.5),
    "wide": RouterSpec(num_experts=4, k=2, projection_dtype="float32"),
    "zero experts": RouterSpec(num_experts=3, zero_experts=1, k=2),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("spec", RULES.values(), ids=RULES)
def test_logits_equal_the_oracle(spec, dtype):
    x, w = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    b = jnp.asarray(B, dtype) if spec.router_bias else None
    logits = router_logits(x, w, b, spec=spec)
    ones = {"w_in": np.ones((4, 6, 2), x.dtype), "w_out": np.ones((4, 1, 6), x.dtype)}
    params = {"router": {"weight": w, "bias": b}, "experts": ones}
    layer = LayerSpec(d_model=6, router=spec, experts=ExpertSpec(d_hidden=1))
    truth = oracle.layer(x, params, layer).routing.logits
    assert (oracle.ratio(logits, truth.value, truth.bound) <= 1).all()
    wide = "float32" if spec.projection_dtype and dtype == "bfloat16" else dtype
    assert logits.dtype == wide


def test_a_nan_token_has_nan_logits_alone():
    dirty = jnp.asarray(X).at[2, 1].set(jnp.nan)
    clean, found = (
        router_logits(x, jnp.asarray(W), spec=RULES["plain"]) for x in (jnp.asarray(X), dirty)
    )
    assert jnp.isnan(found[2]).all()
    others = jnp.array([0, 1, 3, 4])
    assert (found[others] == clean[others]).all()


def test_routing_returns_raw_logits():
    """Before score, bias and scale: what a z-loss needs."""
    spec = RouterSpec(num_experts=4, k=2, score="sigmoid", selection_bias=True, scale=3.0)
    logits = jnp.array([[3.0, 0, 0, 0]])
    routing = route(logits, spec, jnp.array([0, 9.0, 9, 0]))
    assert routing.logits.tolist() == logits.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, W[:3]), r"`weight` must be one row for each of num_choices=4; got shape \(3, 6\)"),
        ((X, W[:, :5]), r"router_logits: `weight` must be .*d_model=6.*got f64\[4,5\]"),
        ((X[0], W), r"router_logits: `x` must be .*got f64\[6\]"),
        ((X, W, B), r"`bias` must be given exactly when router_bias \(router_bias=False\)"),
        ((X.astype(int), W), r"router_logits: `x` must be Float.*got i64\[5,6\]"),
    ],
)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_errors(arguments, message, transform):
    with pytest.raises(ValueError, match=message):
        transform(lambda arguments: router_logits(*arguments, spec=RULES["plain"]))(
            tuple(map(jnp.asarray, arguments))
        )


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_jitter_multiplies_within_its_range(dtype):
    x = jnp.ones((64, 32), dtype)
    noisy = jitter(x, jax.random.key(0), eps=0.25)
    assert noisy.dtype == x.dtype
    assert ((noisy >= 0.75) & (noisy <= 1.25)).all()
    assert len(jnp.unique(noisy)) > 32
    assert (jitter(x, jax.random.key(0), eps=0.25) == noisy).all()
    assert (jitter(x, jax.random.key(1), eps=0.25) != noisy).any()
    assert (jitter(x, jax.random.key(0), eps=0.0) == x).all()


@pytest.mark.parametrize("eps", [-0.1, 1.0])
def test_jitter_errors(eps):
    with pytest.raises(ValueError, match=rf"`eps` must be in \[0, 1\); got {eps}"):
        jitter(jnp.ones((2, 2)), jax.random.key(0), eps=eps)
