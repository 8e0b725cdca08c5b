"""Combine weights: renormalise, scale, factor, round; each option apart from the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.routing import combine_weights, route, router_scores
from moe_ref.spec import RouterSpec

# Chosen so that every quotient below is exact.
SCORES = jnp.array([[0.375, 0.125, 0.0625, 0.0625]], jnp.float32)
PAIR = jnp.array([[0, 1]])


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ({}, [0.375, 0.125]),
        ({"scale": 2.5}, [0.9375, 0.3125]),
        ({"renormalize": "sum"}, [0.75, 0.25]),
        ({"renormalize": "sum", "scale": 2.5}, [1.875, 0.625]),
        ({"renormalize": "sum", "renormalize_eps": 0.5}, [0.375, 0.125]),
        ({"renormalize": "clamp", "renormalize_eps": 0.25}, [0.75, 0.25]),
        ({"renormalize": "clamp", "renormalize_eps": 1.0}, [0.375, 0.125]),
        ({"renormalize": "p_norm", "renormalize_p": 1.0}, [0.75, 0.25]),
        ({"scale": 2.5, "scale_site": "output"}, [0.375, 0.125]),
        ({"renormalize": "sum", "renormalize_only_above_one": True}, [0.75, 0.25]),
    ],
)
def test_options_are_orthogonal(rule, wanted):
    spec = RouterSpec(num_experts=4, k=2, **rule)
    assert combine_weights(SCORES, PAIR, spec=spec).tolist() == [wanted]


@pytest.mark.parametrize(("only_above_one", "wanted"), [(False, 1.0), (True, 0.375)])
def test_one_choice_may_keep_its_score(only_above_one, wanted):
    spec = RouterSpec(
        num_experts=4, k=1, renormalize="sum", renormalize_only_above_one=only_above_one
    )
    assert combine_weights(SCORES, PAIR[:, :1], spec=spec).tolist() == [[wanted]]


def test_empty_slots_take_no_part_in_renormalising():
    spec = RouterSpec(num_experts=4, k=3, renormalize="sum")
    weights = combine_weights(SCORES, jnp.array([[-1, 0, 1]]), spec=spec)
    assert weights.tolist() == [[0, 0.75, 0.25]]
    selected = RouterSpec(num_experts=4, k=3, score="softmax_selected")
    weights = combine_weights(jnp.zeros((1, 4)), jnp.array([[2, -1, 1]]), spec=selected)
    assert weights.tolist() == [[0.5, 0, 0.5]]


def test_a_repeated_expert_counts_in_each_slot():
    spec = RouterSpec(num_experts=4, k=3, renormalize="sum")
    weights = combine_weights(SCORES, jnp.array([[1, 1, 1]]), spec=spec)
    assert len(set(weights[0].tolist())) == 1
    raw = RouterSpec(num_experts=4, k=3)
    weights = combine_weights(SCORES, jnp.array([[1, 0, 1]]), spec=raw)
    assert weights.tolist() == [[0.125, 0.375, 0.125]]


def test_each_expert_has_its_factor_after_everything_else():
    spec = RouterSpec(num_experts=4, k=2, renormalize="sum", per_expert_scale=True, scale=2.0)
    factor = jnp.array([4.0, 0.5, 1, 1], jnp.float32)
    assert combine_weights(SCORES, PAIR, factor, spec=spec).tolist() == [[6.0, 0.25]]
    assert combine_weights(SCORES, PAIR[:, ::-1], factor, spec=spec).tolist() == [[0.25, 6.0]]


RULES = {
    "sum": {"renormalize": "sum"},
    "tiny eps": {"renormalize": "sum", "renormalize_eps": 1e-20},
    "clamp": {"renormalize": "clamp", "renormalize_eps": 1e-12},
    "1-norm": {"renormalize": "p_norm"},
    "2-norm": {"renormalize": "p_norm", "renormalize_p": 2.0},
    "half-norm": {"renormalize": "p_norm", "renormalize_p": 0.5},
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_nothing_to_divide_by_gives_0_and_gradient_0(rule, dtype):
    """Every chosen score underflows to 0; beside it a token whose scores do not."""
    spec = RouterSpec(num_experts=4, k=2, score="sigmoid", score_dtype=None, **rule)
    logits = jnp.array([[-2000, -2000, 1, 1], [0, -1, 1, 1]], dtype)
    ids = jnp.array([[0, 1], [0, 1]])

    value, back = jax.vjp(lambda logits: route(logits, spec, experts=ids).weights, logits)
    (gradient,) = back(jnp.array([[1, -2], [3, 1]], dtype))
    assert not value[0].any()
    assert value[1].all()
    assert not gradient[0].any()
    assert gradient[1, :2].all()
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("score", ["sigmoid", "sqrt_softplus", "softmax", "softmax_selected"])
@pytest.mark.parametrize("logit", [-1e4, -200.0, -100.0, -50.0, 0.0, 50.0, 1e4])
def test_gradients_are_finite_at_any_offset(score, logit):
    spec = RouterSpec(
        num_experts=4, k=2, score=score, renormalize="none" if "selected" in score else "sum"
    )
    logits = jnp.full((1, 4), logit, jnp.float32) + jnp.array([[0.5, 0.25, 0, 0]], jnp.float32)
    value, back = jax.vjp(lambda logits: route(logits, spec).weights, logits)
    (gradient,) = back(jnp.array([[1.0, -1.0]], jnp.float32))
    assert jnp.isfinite(value).all()
    assert jnp.isfinite(gradient).all()
    truth = oracle.route(logits, spec).weights
    assert (oracle.ratio(value, truth.value, truth.bound) <= 1).all()


def test_all_minus_inf_has_softmax_0_and_gradient_0():
    spec = RouterSpec(num_experts=4, k=2)
    logits = jnp.array([[-jnp.inf] * 4, [0.0, 0, 0, 0]])
    value, back = jax.vjp(lambda logits: router_scores(logits, spec=spec), logits)
    assert value.tolist() == [[0] * 4, [0.25] * 4]
    (gradient,) = back(jnp.array([[1.0, 2, 3, 4], [1.0, 2, 3, 4]]))
    assert gradient[0].tolist() == [0] * 4
    assert gradient[1].tolist() == [-0.375, -0.125, 0.125, 0.375]


@pytest.mark.parametrize("score", ["sigmoid", "sqrt_softplus", "none"])
def test_a_nan_logit_stays_where_it_is(score):
    spec = RouterSpec(num_experts=4, k=2, score=score)
    scores = router_scores(jnp.array([[0.0, np.nan, 1, 2], [0.0, 1, 2, 3]]), spec=spec)
    assert jnp.isnan(scores).tolist() == [[False, True, False, False], [False] * 4]


def test_weights_are_rounded_once_and_last():
    spec = RouterSpec(num_experts=4, k=2, renormalize="sum", scale=3.0, weight_dtype="bfloat16")
    scores = jnp.array([[0.3, 0.4, 0.2, 0.1]], jnp.float32)
    weights = combine_weights(scores, PAIR, spec=spec)
    wide = combine_weights(
        scores, PAIR, spec=RouterSpec(num_experts=4, k=2, renormalize="sum", scale=3.0)
    )
    assert weights.dtype == jnp.bfloat16
    assert (weights == wide.astype(jnp.bfloat16)).all()


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (SCORES, jnp.zeros((2, 2), int)),
            r"combine_weights: `experts` must be .*tokens=1.*i64\[2,2\]",
        ),
        (
            (SCORES, jnp.zeros((1, 2))),
            r"`experts` must be Int\[Array, 'tokens k'\].*got f64\[1,2\]",
        ),
        ((SCORES, jnp.zeros((1, 2), "uint8")), r"`experts` must be Int\[.*got u8\[1,2\]"),
        ((SCORES[0], PAIR), r"`scores` must be Float\[Array, 'tokens choices'\]; got f32\[4\]"),
        ((SCORES, PAIR, jnp.ones(4)), r"`per_expert_scale` must be given exactly when .*False"),
    ],
)
def test_errors(arguments, message, transform):
    spec = RouterSpec(num_experts=4, k=2)
    with pytest.raises(ValueError, match=message):
        transform(lambda arguments: combine_weights(*arguments, spec=spec))(arguments)
