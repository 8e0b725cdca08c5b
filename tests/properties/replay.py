"""One recorded routing, every execution, one verdict."""

from hypothesis import settings

from moe_ref import oracle
from moe_ref.conformance import strategies
from properties.judge import SPECS, TOKENS, assert_audible, random_layer, replayed, verdict


def some(divisor: int):
    """A share of the profile's number of examples."""
    return settings(max_examples=max(1, settings.default.max_examples // divisor))


def judge_replay(name, dtype, data, **how):
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
    for what, result in replayed(spec, **how)(layer, x, cotangent, ids, mask).items():
        assert result[0].dtype == x.dtype
        verdict(truth, pulled, result, what)
