"""Auxiliary losses: closed forms, calculus, padding, and moe_ref's own inside the bound."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle, routing
from moe_ref.spec import Numerics, RouterSpec

SCORES = ("softmax", "softmax_selected", "sigmoid", "sqrt_softplus", "none")
TOKENS, EXPERTS, K = 12, 6, 2


def rule(score="softmax", **fields):
    return RouterSpec(**{"num_experts": EXPERTS, "k": K, "score": score} | fields)


def draw(seed=0, scale=2.0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.standard_normal((TOKENS, EXPERTS))).astype(dtype)
    return logits, rng.integers(-1, EXPERTS, (TOKENS, K)), rng.random(TOKENS) < 0.7


def inside(actual, truth):
    return oracle.ratio(actual, truth.value, truth.bound).max(initial=0.0) <= 1


def formula(logits, experts, score, mask, divide_by_k=True):
    """Both losses, token by token, for real or complex logits."""
    tokens, choices = logits.shape
    real = [t for t in range(tokens) if mask[t]]
    counts = [sum(int((experts[t] == e).sum()) for t in real) for e in range(choices)]
    balance = z = 0.0
    for t in real:
        row = logits[t]
        total = np.exp(row).sum()
        if score == "sigmoid":
            s = 1 / (1 + np.exp(-row))
        elif score == "sqrt_softplus":
            s = np.sqrt(np.log(1 + np.exp(row)))
        else:
            s = np.exp(row) / total
        balance = balance + (counts * s / s.sum()).sum()
        z = z + np.log(total) ** 2
    factor = choices / (len(real) ** 2 * (experts.shape[1] if divide_by_k else 1))
    return np.array([balance * factor, z / len(real)])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("divide_by_k", [True, False])
def test_is_the_formula(score, divide_by_k):
    logits, experts, mask = draw()
    result = oracle.losses(logits, experts, rule(score), mask=mask, divide_by_k=divide_by_k)
    expected = formula(logits, experts, score, mask, divide_by_k)
    assert inside(expected, result.losses)
    assert not inside(expected * (1 + 1e-12), result.losses)
    assert result.balance.value == result.losses.value[0]
    assert result.z.value == result.losses.value[1]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("divide_by_k", [True, False])
def test_the_gradient_is_that_of_a_complex_step(score, divide_by_k):
    logits, experts, mask = draw(1)
    cotangent, step = np.array([0.7, -1.3]), 1e-30
    found = oracle.losses_vjp(
        logits, experts, rule(score), cotangent, mask=mask, divide_by_k=divide_by_k
    )
    expected = np.zeros_like(logits)
    for place in np.ndindex(logits.shape):
        moved = logits.astype(complex)
        moved[place] += 1j * step
        both = formula(moved, experts, score, mask, divide_by_k)
        expected[place] = (cotangent @ both).imag / step
    assert inside(expected, found)
    assert not inside(expected * (1 + 1e-10), found)
    assert not found.value[~mask].any()
    assert not found.bound[~mask].any()


@functools.partial(jax.jit, static_argnames="spec")
def own(logits, experts, mask, spec):
    routed = routing.route(logits, spec, None, mask, experts=experts)
    balance = routing.balance_loss(routed, spec=spec, mask=mask)
    return jnp.stack([balance, routing.z_loss(logits, mask=mask)])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_moe_ref_is_inside(score, dtype):
    for seed, (scale, offset) in enumerate([(0.01, 0), (2.0, 0), (30.0, 0), (2.0, -40)]):
        logits, experts, mask = draw(seed, scale)
        logits = jnp.asarray(logits + offset, dtype)
        given = np.asarray(logits), experts
        call = functools.partial(
            own, experts=jnp.asarray(experts), mask=jnp.asarray(mask), spec=rule(score)
        )
        found, pull = jax.vjp(lambda z, call=call: call(z), logits)
        truth = oracle.losses(*given, rule(score), mask=mask)
        assert inside(found, truth.losses)
        assert not inside(found * 1.001, truth.losses)
        cotangent = jnp.asarray([0.75, -1.25], found.dtype)
        truth = oracle.losses_vjp(*given, rule(score), np.asarray(cotangent), mask=mask)
        assert inside(pull(cotangent)[0], truth)
        doubled = oracle.ratio(2 * pull(cotangent)[0], truth.value, truth.bound)[mask]
        assert (doubled.max(axis=1) > 1).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("k", [1, 2, EXPERTS])
def test_equal_use_of_the_experts_costs_one(score, k):
    experts = (np.arange(EXPERTS)[:, None] + np.arange(k)) % EXPERTS
    spec = rule(score, k=k)
    zeros = np.zeros((EXPERTS, EXPERTS))
    once = oracle.losses(zeros, experts, spec)
    assert inside(1.0, once.balance)
    assert inside(math.log(EXPERTS) ** 2, once.z)
    assert inside(float(k), oracle.losses(zeros, experts, spec, divide_by_k=False).balance)
    assert once.load.tolist() == [k] * EXPERTS
    assert not once.step.any()
    assert inside(0.0, oracle.losses_vjp(zeros, experts, spec, np.array([1.0, 0.0])))


def test_one_expert_for_all_costs_their_number():
    logits = np.where(np.arange(EXPERTS) == 3, 60.0, 0.0) * np.ones((TOKENS, 1))
    result = oracle.losses(logits, np.full((TOKENS, 1), 3), rule(k=1))
    assert inside(float(EXPERTS), result.balance)
    assert result.step.tolist() == [1, 1, 1, -1, 1, 1]


@pytest.mark.parametrize("score", SCORES)
def test_padding_reaches_nothing(score):
    logits, experts, mask = draw(2)
    dirty, c = np.where(mask[:, None], logits, np.nan), np.array([1.0, 1.0])
    for call in (oracle.losses, functools.partial(oracle.losses_vjp, cotangent=c)):
        clean, found, short = (
            call(logits, experts, rule(score), mask=mask),
            call(dirty, np.where(mask[:, None], experts, 5), rule(score), mask=mask),
            call(logits[mask], experts[mask], rule(score)),
        )
        if call is oracle.losses:
            assert clean.load.tolist() == found.load.tolist() == short.load.tolist()
            clean, found, short = clean.losses, found.losses, short.losses
            np.testing.assert_array_equal(found.value, short.value)
        np.testing.assert_array_equal(found.value, clean.value)
        np.testing.assert_array_equal(found.bound, clean.bound)


@pytest.mark.parametrize("tokens", [0, 4])
def test_nothing_but_padding_costs_nothing(tokens):
    logits, experts = np.full((tokens, EXPERTS), np.nan), np.zeros((tokens, K), int)
    mask = np.zeros(tokens, bool)
    result = oracle.losses(logits, experts, rule(), mask=mask)
    gradient = oracle.losses_vjp(logits, experts, rule(), np.ones(2), mask=mask)
    for value in (result.losses, gradient):
        assert not value.value.any()
        assert not value.bound.any()
    assert not result.load.any()
    assert not result.step.any()


@pytest.mark.parametrize(
    ("experts", "load", "step"),
    [
        ([[0, 0], [0, 1], [-1, -1]], [3, 1, 0], [-1, 1, 1]),
        ([[2, -1], [-1, 1], [0, -1]], [1, 1, 1], [0, 0, 0]),
        ([[2, 2], [2, 1], [1, 0]], [1, 2, 3], [1, 0, -1]),
        ([[2, 2], [1, 1], [1, -1]], [0, 3, 2], [1, -1, -1]),
    ],
)
def test_load_and_step(experts, load, step):
    result = oracle.losses(np.zeros((3, 3)), np.array(experts), rule(num_experts=3))
    assert result.load.tolist() == load
    assert result.step.tolist() == step


def test_small_sigmoids_are_still_shares():
    """At any offset that leaves them in proportion; where all underflow, nothing is known."""
    experts = np.zeros((4, 1), int)
    spec = RouterSpec(num_experts=4, k=1, score="sigmoid")
    for offset in (0.0, -30.0, -60.0):
        logits = np.full((4, 4), offset, np.float32)
        result = oracle.losses(logits, experts, spec)
        assert inside(1.0, result.balance)
        assert result.balance.bound < 1e-5
    gone = oracle.losses(np.full((4, 4), -1e4, np.float32), experts, spec)
    assert gone.balance.bound >= 1


def test_bounds_follow_from_what_is_declared():
    logits, experts, _ = draw(3, dtype=np.float32)
    narrow = Numerics(score="bfloat16", gradient_sum="bfloat16")
    for call in (
        lambda n: oracle.losses(logits, experts, rule(), numerics=n).losses,
        lambda n: oracle.losses_vjp(logits, experts, rule(), np.ones(2), numerics=n),
    ):
        tight, loose = call(None), call(narrow)
        np.testing.assert_array_equal(tight.value, loose.value)
        assert (loose.bound > 1000 * tight.bound).all()
        assert (tight.bound <= tight.worst).all()


def test_a_nan_shows():
    logits, experts, _ = draw()
    logits[1, 2] = np.nan
    assert np.isnan(oracle.losses(logits, experts, rule()).losses.value).all()
    gradient = oracle.losses_vjp(logits, experts, rule(), np.ones(2)).value
    assert np.isnan(gradient[1]).all()
    assert np.isfinite(np.delete(gradient, 1, axis=0)).all()


def test_wrong_arguments_are_named():
    logits, experts, _ = draw()
    with pytest.raises(ValueError, match=r"`logits` must be of shape \[tokens, 6\]"):
        oracle.losses(logits[:, :3], experts, rule())
    with pytest.raises(ValueError, match=r"`experts` must be in \[-1, 6\)"):
        oracle.losses(logits, experts + 5, rule())
    with pytest.raises(ValueError, match=r"`cotangent` must be of shape \(2,\)"):
        oracle.losses_vjp(logits, experts, rule(), np.ones(3))
