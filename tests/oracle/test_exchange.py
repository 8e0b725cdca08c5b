"""Dispatch and combine: values, gradients, order, capacity, traffic, containment, errors."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.spec import Numerics

TOKENS, K, D, EXPERTS = 30, 3, 6, 5
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def draw(seed, dtype="float32"):
    """x, experts, weights, scale, cotangent: repeats, empty slots, an idle expert."""
    rng = np.random.default_rng(seed)
    experts = rng.integers(-1, EXPERTS - 1, (TOKENS, K))
    experts[:, 1] = np.where(rng.random(TOKENS) < 0.3, experts[:, 0], experts[:, 1])
    shapes = ((TOKENS, D), (TOKENS, K), (EXPERTS,), (TOKENS, D))
    x, weights, scale, dy = (rng.standard_normal(s).astype(DTYPES[dtype]) for s in shapes)
    weights[experts < 0] = np.nan
    scale[-1] = np.nan
    return x, experts, weights, scale, dy


def whole(seed):
    """The same with small integers, so that every sum and difference is exact."""
    rng = np.random.default_rng(seed)
    _, experts, *_ = draw(seed)
    shapes = ((TOKENS, D), (TOKENS, K), (EXPERTS,), (TOKENS, D))
    x, weights, scale, dy = (rng.integers(-9, 10, s).astype(float) for s in shapes)
    return x, experts, weights, scale, dy


def slots(experts):
    """Every filled slot: token, slot, expert."""
    for token, slot in itertools.product(range(TOKENS), range(K)):
        if experts[token, slot] >= 0:
            yield token, slot, experts[token, slot]


def by_hand(x, experts, weights, scale):
    y = np.zeros((TOKENS, D))
    for token, slot, expert in slots(experts):
        y[token] += float(weights[token, slot]) * float(scale[expert]) * x[token].astype(float)
    return y


def kernel(x, experts, weights, scale, *, backwards=False, fault=""):
    """What a kernel does in float32: the sum in either order, one rounding at the end."""
    y = np.zeros((TOKENS, D), np.float32)
    for token, slot, expert in sorted(slots(experts), reverse=backwards):
        row = x[token].astype(np.float32) * np.float32(scale[expert])
        y[token] += np.float32(weights[token, slot]) * row
        if fault == "bfloat16 sum":
            y[token] = y[token].astype(ml_dtypes.bfloat16)
    if fault == "truncated":
        bits = y.view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    return y.astype(x.dtype)


def gradients(x, experts, weights, scale, dy):
    """The same backwards: rounded to the dtype of x where `Numerics.of` says."""
    wide = [array.astype(np.float32) for array in (x, weights, scale, dy)]
    x32, w32, s32, dy32 = wide
    dx, dw, ds = (np.zeros(array.shape, np.float32) for array in (x, weights, scale))
    for token, slot, expert in slots(experts):
        onto = (w32[token, slot] * dy32[token]).astype(x.dtype).astype(np.float32)
        dx[token] += (s32[expert] * onto).astype(x.dtype).astype(np.float32)
        dw[token, slot] = (dy32[token] * (s32[expert] * x32[token])).sum()
        ds[expert] += (onto * x32[token]).sum()
    return [part.astype(x.dtype) for part in (dx, dw, ds)]


def ratio(actual, truth):
    return oracle.ratio(actual, truth.value, truth.bound).max(initial=0)


def test_values_are_those_of_the_formula():
    arguments = whole(0)[:4]
    np.testing.assert_array_equal(oracle.combine(*arguments).value, by_hand(*arguments))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(5))
def test_correct_kernels_are_inside(dtype, seed):
    x, experts, weights, scale, dy = draw(seed, dtype)
    truth = oracle.combine(x, experts, weights, scale)
    for backwards in (False, True):
        y = kernel(x, experts, weights, scale, backwards=backwards)
        assert ratio(y, truth) <= 1
    g = oracle.combine_vjp(x, experts, weights, scale, dy)
    for actual, part in zip(gradients(x, experts, weights, scale, dy), (g.x, g.weights, g.scale)):
        assert ratio(actual, part) <= 1


@pytest.mark.parametrize("fault", ["bfloat16 sum", "truncated"])
def test_faults_are_outside(fault):
    x, experts, weights, scale, _ = draw(0, "bfloat16")
    truth = oracle.combine(x, experts, weights, scale)
    assert ratio(kernel(x, experts, weights, scale, fault=fault), truth) > 1


def test_a_sum_in_bfloat16_has_to_be_declared():
    x, experts, weights, scale, _ = draw(0, "bfloat16")
    declared = Numerics(inputs="bfloat16", combine="bfloat16", output="bfloat16")
    truth = oracle.combine(x, experts, weights, scale, numerics=declared)
    assert ratio(kernel(x, experts, weights, scale, fault="bfloat16 sum"), truth) <= 1


def test_gradients_are_differences():
    """The sum is linear in each argument: a difference is the derivative, without rounding."""
    x, experts, weights, scale, dy = whole(1)
    g = oracle.combine_vjp(x, experts, weights, scale, dy)

    def loss(*arguments):
        return (by_hand(arguments[0], experts, *arguments[1:]) * dy).sum()

    arguments = [x, weights, scale]
    for which, part in enumerate((g.x, g.weights, g.scale)):
        for place in np.ndindex(*arguments[which].shape):
            moved = [array.copy() for array in arguments]
            moved[which][place] += 1
            assert part.value[place] == loss(*moved) - loss(*arguments)


def test_what_is_not_read_is_zero():
    x, experts, weights, scale, dy = draw(0)
    experts[4] = -1
    g = oracle.combine_vjp(x, experts, weights, scale, dy)
    y = oracle.combine(x, experts, weights, scale)
    for part in (g.weights[experts < 0], g.scale[-1:], g.x[4], y[4]):
        assert not part.value.any()
        assert not part.bound.any()


def test_nan_reaches_what_uses_it():
    x, experts, weights, scale, dy = draw(0)
    clean = oracle.combine(x, experts, weights, scale)
    x[7, 2] = np.nan
    scale[1] = np.inf
    dirty = oracle.combine(x, experts, weights, scale)
    uses = (experts == 1).any(axis=1)
    expected = np.broadcast_to(~uses[:, None], (TOKENS, D)).copy()
    expected[7, 2] = False
    np.testing.assert_array_equal(np.isfinite(dirty.value), expected)
    np.testing.assert_array_equal(dirty.value[expected], clean.value[expected])
    g = oracle.combine_vjp(x, experts, weights, scale, dy)
    reached = (~np.isfinite(g.weights.value)).any(axis=1)
    np.testing.assert_array_equal(reached, uses | (np.arange(TOKENS) == 7))


def test_permutation_is_stable():
    _, experts, *_ = draw(0)
    order = oracle.permutation(experts, EXPERTS)
    expected = sorted(slots(experts), key=lambda place: place[2])
    found = zip(order.tokens.tolist(), order.slots.tolist())
    assert list(found) == [(token, slot) for token, slot, _ in expected]
    sizes = [int((experts == e).sum()) for e in range(EXPERTS)]
    assert order.group_sizes.tolist() == sizes


@pytest.mark.parametrize("capacity", [0, 1, 4, 1000])
def test_capacity_serves_token_after_token(capacity):
    x, experts, weights, scale, dy = whole(0)
    kept, taken = experts.copy(), [0] * EXPERTS
    for token, slot, expert in slots(experts):
        if taken[expert] == capacity:
            kept[token, slot] = -1
        else:
            taken[expert] += 1
    order = oracle.permutation(experts, EXPERTS, capacity=capacity)
    np.testing.assert_array_equal(order.kept, kept >= 0)
    assert order.group_sizes.tolist() == taken
    y = oracle.combine(x, experts, weights, scale, capacity=capacity)
    np.testing.assert_array_equal(y.value, by_hand(x, kept, weights, scale))
    g = oracle.combine_vjp(x, experts, weights, scale, dy, capacity=capacity)
    without = oracle.combine_vjp(x, kept, weights, scale, dy)
    np.testing.assert_array_equal(g.weights.value, without.weights.value)
    np.testing.assert_array_equal(g.scale.value, without.scale.value)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_traffic(ranks):
    rng = np.random.default_rng(ranks)
    experts = rng.integers(-1, 8, (ranks, 5, 3))
    rows, copies = np.zeros((ranks, ranks), int), np.zeros((ranks, ranks), int)
    for source, token in np.ndindex(ranks, 5):
        homes = [e // (8 // ranks) for e in experts[source, token] if e >= 0]
        for home in homes:
            copies[source, home] += 1
        for home in set(homes):
            rows[source, home] += 1
    sent = oracle.traffic(experts, 8)
    np.testing.assert_array_equal(sent.rows, rows)
    np.testing.assert_array_equal(sent.copies, copies)


def test_nothing_to_do():
    y = oracle.combine(np.zeros((0, D)), np.zeros((0, K), int), np.zeros((0, K)), np.zeros(EXPERTS))
    assert y.value.shape == (0, D)
    assert oracle.permutation(np.zeros((0, K), int), 3).group_sizes.tolist() == [0, 0, 0]
    assert not oracle.traffic(np.zeros((2, 0, K), int), 4).rows.any()


X, IDS, W, S, DY = draw(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: oracle.combine(X, IDS + 2, W, S), "`experts` must be in [-1, experts=5); got"),
        (lambda: oracle.combine(X, IDS * 1.0, W, S), "`experts` must be integers; got float64."),
        (lambda: oracle.combine(X, IDS[:4], W, S), "`experts` must be of x's 30 tokens; got"),
        (lambda: oracle.combine(X, IDS, W[:, :2], S), "`weights` must be of shape (30, 3); got"),
        (lambda: oracle.combine(X[0], IDS, W, S), "`x` must be of shape [tokens, d]; got"),
        (lambda: oracle.combine(X, IDS, W, W), "`scale` must be of shape [experts]; got"),
        (lambda: oracle.combine_vjp(X, IDS, W, S, W), "`cotangent` must be of shape (30, 6); got"),
        (lambda: oracle.permutation(IDS[0], 5), "`experts` must be of shape [tokens, k]; got"),
        (lambda: oracle.permutation(IDS, 5, capacity=-1), "`expert_capacity` must be at least 0"),
        (lambda: oracle.traffic(IDS, 5), "`experts` must be of shape [ranks, tokens, k]; got"),
        (
            lambda: oracle.traffic(IDS.reshape(3, 10, 3), 5),
            "`num_experts` must be a multiple of 3 ranks; got 5.",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)
