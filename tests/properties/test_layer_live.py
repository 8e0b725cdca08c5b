"""The layer as it comes, choosing and dropping by itself, beside the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_ref import oracle
from moe_ref.conformance import strategies
from properties.judge import SPECS, TOKENS, assert_audible, live, random_layer, verdict
from properties.replay import some

pytestmark = pytest.mark.slow

# Layers that choose, or drop, each in another way.
LIVE = [
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v4-hash",
    "few-slots",
    "gpt-oss-20b",
    "llama4-scout",
    "longcat-flash",
    "switch-base",
]


@pytest.mark.parametrize("name", LIVE)
@some(8)
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
