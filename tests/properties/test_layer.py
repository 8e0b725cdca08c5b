"""Dense == Dropless == Capacity (enough) == oracle: values and every gradient, every preset."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_ref import oracle
from moe_ref.conformance import strategies
from properties.judge import (
    SPECS,
    TOKENS,
    assert_audible,
    live,
    random_layer,
    replayed,
    verdict,
)

# Layers whose stages differ in the narrow dtypes they round to.
NARROW = [
    ("deepseek-v3", "float32"),
    ("deepseek-v3", "bfloat16"),
    ("deepseek-v4", "bfloat16"),
    ("gpt-oss-20b", "bfloat16"),
    ("hidden-site", "float32"),
    ("latent", "bfloat16"),
    ("llama4-scout", "float32"),
]
# Layers that choose, or drop, each in another way.
LIVE = [
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v4-hash",
    "ernie4.5-moe",
    "few-slots",
    "gpt-oss-20b",
    "llama4-scout",
    "longcat-flash",
    "switch-base",
]


def some(divisor: int):
    """A share of the profile's number of examples."""
    return settings(max_examples=max(1, settings.default.max_examples // divisor))


@pytest.mark.parametrize("name", SPECS)
@some(8)
@given(data=st.data())
def test_executions_equal_the_oracle(name, data):
    judge_replay(name, "float64", "loop", data)


@pytest.mark.parametrize(("name", "dtype"), NARROW)
@some(6)
@given(data=st.data())
def test_executions_equal_the_oracle_in_narrow_dtypes(name, dtype, data):
    judge_replay(name, dtype, "auto", data)


def judge_replay(name, dtype, grouped, data):
    """Recorded ids with skew, idle experts, repeats, empty slots, padding."""
    spec = SPECS[name].replace(capacity=None)
    router, shape = spec.router, (TOKENS, spec.d_model)
    layer = random_layer(spec, dtype=dtype, seed=data.draw(strategies.seeds()))
    size = strategies.magnitudes() if dtype == "float64" else 1.0
    x = data.draw(strategies.arrays(shape, dtype=dtype, magnitude=size))
    cotangent = data.draw(strategies.arrays(shape, dtype=dtype))
    ids = data.draw(strategies.routings(tokens=TOKENS, k=router.k, num_choices=router.num_choices))
    mask = data.draw(strategies.masks(tokens=TOKENS))
    truth = oracle.layer(x, layer, spec, experts=ids, mask=mask)
    pulled = oracle.layer_vjp(x, layer, spec, cotangent, experts=ids, mask=mask)
    assert_audible(truth)
    for what, result in replayed(spec, grouped)(layer, x, cotangent, ids, mask).items():
        assert result[0].dtype == x.dtype
        verdict(truth, pulled, result, what)


@pytest.mark.parametrize("name", LIVE)
@some(6)
@given(data=st.data())
def test_live_routing_equals_the_oracle(name, data):
    """The layer's own choice and its own capacity, with the logits skewed and tied at will."""
    spec = SPECS[name]
    router, shape = spec.router, (TOKENS, spec.d_model)
    seed = data.draw(strategies.seeds())
    layer = random_layer(spec, dtype="float64", seed=seed, plain_router=True)
    x, cotangent = (data.draw(strategies.arrays(shape, dtype="float64")) for _ in range(2))
    x[:, : router.num_choices] = data.draw(
        strategies.logits(router, tokens=TOKENS, dtype="float64")
    )
    token_ids = np.arange(TOKENS, dtype=np.int32) * 5 if router.hash_vocab else None
    result = live(layer, x, cotangent, token_ids)
    chosen = np.asarray(result[1].routing.experts)
    own = oracle.layer(x, layer, spec, token_ids=token_ids)
    assert oracle.acceptable(own.routing, chosen).all()
    truth = oracle.layer(x, layer, spec, experts=chosen)
    pulled = oracle.layer_vjp(x, layer, spec, cotangent, experts=chosen)
    assert_audible(truth)
    verdict(truth, pulled, result, "live")
    load, kept = (
        np.bincount(ids, minlength=router.num_choices)
        for ids in (chosen.ravel(), chosen[truth.kept])
    )
    assert (np.asarray(result[1].load) == load).all()
    assert (np.asarray(result[1].kept) == kept).all()


@pytest.fixture(autouse=True, scope="module")
def forget():
    """Compiled programs are of no use to other tests."""
    yield
    replayed.cache_clear()
    jax.clear_caches()
