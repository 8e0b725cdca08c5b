"""Hand-written gradients against central differences of the oracle's own forward pass.

All leaves move at once, each along its own random direction. A difference quotient of step h is
off by c h^2 and by the rounding of the two values; the step 2h tells c, and the oracle's bound on
its float64 values tells the rounding. Nothing else is allowed.
"""

import numpy as np
import pytest

from moe_ref import oracle
from oracle.cases import SPECS, case, leaves, reach, replaced

STEPS = [2.0**-17, 2.0**-20, 2.0**-14]  # a kink between the points spoils some step, not all


def check_slope(f, at, gradients):
    """Compare sum(gradient * direction) with the difference quotient of f along directions.

    Args:
        f: list of arrays -> (value, bound on its rounding).
        at: list of arrays.
        gradients: list of `oracle.Value`, one for each array.
    """
    rng = np.random.default_rng(11)
    directions = [rng.standard_normal(a.shape) for a in at]
    # Padding is NaN and has no direction; leaves get about the same share of the slope.
    directions = [np.where(np.isnan(a), 0, d) for a, d in zip(at, directions, strict=True)]
    for d, g in zip(directions, gradients, strict=True):
        d /= np.sqrt((g.value**2 * d**2).sum())
    slopes = [(g.value * d).sum() for g, d in zip(gradients, directions, strict=True)]
    own = sum((g.bound * abs(d)).sum() for g, d in zip(gradients, directions, strict=True))

    def quotient(h):
        moved = [[a + s * h * d for a, d in zip(at, directions, strict=True)] for s in (1, -1)]
        (up, e1), (down, e2) = f(moved[0]), f(moved[1])
        return (up - down) / (2 * h), (e1 + e2) / (2 * h)

    for step in STEPS:
        (near, noise), (far, more_noise) = quotient(step), quotient(2 * step)
        slack = abs(near - far) + noise + more_noise + own
        if slack < 1e-6:  # each leaf's share of the slope is about 1: this could have failed
            break
    else:
        pytest.fail(f"no step is precise enough: {slack}")
    assert abs(sum(slopes) - near) <= slack


def scalar(result, cotangent):
    """sum(y * cotangent), and the bound on its rounding in float64."""
    terms = np.abs(result.value * cotangent).sum()
    error = (result.bound * np.abs(cotangent)).sum() + cotangent.size * 2.0**-53 * terms
    return float((result.value * cotangent).sum()), float(error)


def check_layer(spec, params, x, given):
    cotangent = np.random.default_rng(7).standard_normal(x.shape)
    g = oracle.layer_vjp(x, params, spec, cotangent, **given)
    paths = [path for path, _ in leaves(params)]

    def f(arrays):
        changed = params
        for path, array in zip(paths, arrays[1:], strict=True):
            changed = replaced(changed, path, array)
        return scalar(oracle.layer(arrays[0], changed, spec, **given), cotangent)

    at = [x, *(array for _, array in leaves(params))]
    check_slope(f, at, [g.x, *(reach(g, path) for path in paths)])
    return g


@pytest.mark.parametrize("name", SPECS)
def test_every_gradient_is_the_slope_of_the_forward_pass(name):
    spec, params, x, more = case(name)
    experts = oracle.layer(x, params, spec, **more).routing.experts
    check_layer(spec, params, x, {"experts": experts} | more)


@pytest.mark.parametrize("name", ["softmax-renormalized", "sigmoid-groups", "gpt-oss", "latent"])
def test_with_empty_and_repeated_slots_and_padding(name):
    spec, params, x, more = case(name)
    experts = oracle.layer(x, params, spec, **more).routing.experts.copy()
    experts[::3, 0] = -1
    experts[1::3, -1] = experts[1::3, 0]
    experts[4] = -1
    mask = np.arange(len(x)) % 5 != 3
    x[~mask] = np.nan
    g = check_layer(spec, params, x, {"experts": experts, "mask": mask} | more)
    assert not g.x.value[~mask].any()
    assert not g.x.bound[~mask].any()
    assert not g.weights.value[experts < 0].any()


@pytest.mark.parametrize("name", ["gpt-oss", "gpt-oss-hidden", "gpt-oss-input", "zero-experts"])
def test_gradient_of_given_weights(name):
    spec, params, x, _ = case(name)
    routed = oracle.layer(x, params, spec).routing
    cotangent = np.random.default_rng(3).standard_normal(x.shape)

    def f(arrays):
        given = {"experts": routed.experts, "weights": arrays[0]}
        return scalar(oracle.layer(x, params, spec, routing=given), cotangent)

    g = oracle.layer_vjp(x, params, spec, cotangent, routing=routed)
    check_slope(f, [routed.weights.value], [g.weights])
    assert g.router is None


def test_selection_bias_and_unvisited_experts_get_nothing():
    spec, params, x, _ = case("sigmoid-groups")
    cotangent = np.random.default_rng(0).standard_normal(x.shape)
    experts = np.tile([[0, 1, 2]], (len(x), 1))
    g = oracle.layer_vjp(x, params, spec, cotangent, experts=experts)
    for part in (g.experts.w_in, g.experts.w_out):
        assert part.value[:3].any(axis=(1, 2)).all()
        assert not part.value[3:].any()
        assert not part.bound[3:].any()
    assert not hasattr(g.router, "selection_bias")
    assert not g.router.weight.value[3:].any()  # sigmoid: each logit is on its own


def test_a_zero_sum_gives_zero_weights_and_zero_gradient():
    spec, params, x, _ = case("sqrt-softplus")
    spec = spec.replace(router_bias=True)
    params["router"]["bias"] = np.full(spec.router.num_choices, -2000.0)
    result = oracle.layer(x, params, spec)
    assert not result.value.any()
    g = oracle.layer_vjp(x, params, spec, np.ones_like(x))
    assert not g.x.value.any()
    assert np.isfinite(g.router.weight.value).all()
