"""Routing: the order of the choice, the weights, what is ambiguous and what is acceptable."""

import dataclasses
import itertools
import math
import types

import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.spec import Numerics, RouterSpec
from oracle import kernel
from oracle.cases import SPECS

INF, NAN = math.inf, math.nan
EXACT = RouterSpec(num_experts=6, k=3, score="none")


def ids(logits, spec=EXACT, **more):
    return oracle.route(np.array([logits], float), spec, **more).experts[0].tolist()


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([1, 2, 3, 4, 5, 6], [5, 4, 3]),
        ([1, 1, 1, 1, 1, 1], [0, 1, 2]),
        ([0, 2, 2, 1, 2, 2], [1, 2, 4]),
        ([-0.0, 0.0, -0.0, 0.0, -1, -1], [0, 1, 2]),
        ([0, INF, 3, NAN, 4, 5], [1, 3, 5]),
        ([-INF, -INF, -INF, -INF, 1, -INF], [4, 0, 1]),
        ([NAN] * 6, [0, 1, 2]),
    ],
)
def test_the_order_is_choice_descending_then_index_ascending(logits, expected):
    assert ids(logits) == expected


GROUPED = RouterSpec(
    num_experts=6, k=2, score="none", num_groups=3, groups_kept=1, group_score="sum_top"
)


@pytest.mark.parametrize(
    ("change", "logits", "expected"),
    [
        ({}, [9, 0, 5, 5, 1, 1], [2, 3]),
        ({"group_score": "max"}, [9, 0, 5, 5, 1, 1], [0, 1]),
        ({"group_top": 1}, [9, 0, 5, 5, 1, 1], [0, 1]),
        ({"groups_kept": 2}, [9, 0, 5, 5, 1, 1], [0, 2]),
        ({}, [1, 1, 1, 1, 1, 1], [0, 1]),
        ({}, [0, 0, 2, -INF, 0, 0], [0, 1]),
        ({"group_score": "max"}, [0, 0, 2, -INF, 0, 0], [2, 3]),
        ({}, [1, NAN, 5, 5, 9, 9], [1, 0]),
    ],
)
def test_groups(change, logits, expected):
    assert ids(logits, dataclasses.replace(GROUPED, **change)) == expected


def test_bias_steers_the_choice_and_reaches_no_weight():
    spec = RouterSpec(num_experts=3, k=1, score="sigmoid", selection_bias=True)
    r = oracle.route(np.zeros((1, 3)), spec, bias=np.array([0.0, 0.0, 1.0]))
    assert r.experts.tolist() == [[2]]
    assert r.weights.value.tolist() == [[0.5]]


def test_choosing_by_logit_sees_what_a_saturated_score_hides():
    spec = RouterSpec(num_experts=2, k=1, score="sigmoid")
    assert ids([40.0, 41.0], spec) == [0]  # both are 1 in float64
    by_logit = RouterSpec(num_experts=2, k=1, score="sigmoid", choose_by="logit")
    assert ids([40.0, 41.0], by_logit) == [1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0.5, 0.25]),
        ({"renormalize": "sum"}, [2 / 3, 1 / 3]),
        ({"renormalize": "sum", "renormalize_eps": 0.25}, [0.5, 0.25]),
        ({"renormalize": "clamp", "renormalize_eps": 0.5}, [2 / 3, 1 / 3]),
        ({"renormalize": "clamp", "renormalize_eps": 2.0}, [0.25, 0.125]),
        ({"renormalize": "p_norm", "renormalize_p": 2.0}, [2 / 5**0.5, 1 / 5**0.5]),
        ({"renormalize": "sum", "scale": 3.0}, [2, 1]),
        ({"renormalize": "sum", "scale": 3.0, "scale_site": "output"}, [2 / 3, 1 / 3]),
        ({"score": "softmax_selected", "scale": 3.0}, [2, 1]),
        ({"score": "none"}, [math.log(4), math.log(2)]),
        ({"score": "sigmoid"}, [0.8, 2 / 3]),
        ({"score": "sqrt_softplus"}, [math.sqrt(math.log(5)), math.sqrt(math.log(3))]),
    ],
)
def test_weights_by_hand(fields, expected):
    logits = np.log(np.array([[4.0, 1.0, 2.0, 1.0]]))
    r = oracle.route(logits, RouterSpec(num_experts=4, k=2, **fields))
    assert r.experts.tolist() == [[0, 2]]
    assert oracle.ratio([expected], r.weights.value, r.weights.bound).max() <= 1
    assert r.weights.bound.max() < 1e-13
    spec = RouterSpec(num_experts=4, k=2, per_expert_scale=True, **fields)
    r = oracle.route(logits, spec, per_expert_scale=np.array([2.0, 5.0, 8.0, 5.0]))
    scaled = np.array([expected]) * [[2.0, 8.0]]
    assert oracle.ratio(scaled, r.weights.value, r.weights.bound).max() <= 1


def test_one_choice_may_be_left_as_it_is():
    fields = {"num_experts": 2, "k": 1, "score": "sigmoid", "renormalize": "sum"}
    one, kept = RouterSpec(**fields), RouterSpec(**fields, renormalize_only_above_one=True)
    assert oracle.route(np.zeros((1, 2)), one).weights.value.tolist() == [[1.0]]
    assert oracle.route(np.zeros((1, 2)), kept).weights.value.tolist() == [[0.5]]


def test_given_experts_empty_slots_and_padding():
    logits = np.log(np.array([[1.0, 2.0, 3.0]] * 3))
    logits[2] = NAN
    spec = RouterSpec(num_experts=3, k=2, renormalize="sum")
    given = np.array([[2, -1], [1, 1], [0, 1]])
    r = oracle.route(logits, spec, experts=given, mask=np.array([True, True, False]))
    assert r.experts.tolist() == [[2, -1], [1, 1], [-1, -1]]
    expected = np.array([[1, 0], [0.5, 0.5], [0, 0]])
    assert oracle.ratio(expected, r.weights.value, r.weights.bound).max() <= 1
    assert not r.weights.bound[2].any()
    assert not r.ambiguous.any()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kernel_is_inside_on_its_own_logits(name, dtype):
    spec = dataclasses.replace(
        SPECS[name].router, selection_bias=False, logit_softcap=None, router_bias=False
    )
    rng = np.random.default_rng(0)
    choices, k = spec.num_choices, spec.k
    for scale in (1e-5, 1.0, 20.0):
        logits = kernel.narrow(rng.standard_normal((30, choices)) * scale, dtype)
        scales = rng.random(choices).astype(np.float32) if spec.per_expert_scale else None
        experts = np.array([rng.permutation(choices)[:k] for _ in logits])
        r = oracle.route(
            logits.astype(kernel.wider(dtype, "float32")),
            spec,
            experts=experts,
            per_expert_scale=scales,
            dtype=dtype,
        )
        params = {"weight": np.eye(choices, dtype=logits.dtype), "per_expert_scale": scales}
        layer = types.SimpleNamespace(router=spec)
        w = kernel.router_weights(params, logits, layer, experts, dtype)
        assert oracle.ratio(w, r.weights.value, r.weights.bound).max() <= 1
        wrong = oracle.ratio(w * 1.02, r.weights.value, r.weights.bound)
        assert (wrong.max(axis=1) > 1).mean() > 0.8  # squares of tiny scores underflow


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0])
def test_no_float32_kernel_chooses_otherwise_outside_the_ambiguous_tokens(score, scale):
    spec = RouterSpec(num_experts=32, k=4, score=score)
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((200, 32)) * scale).astype(np.float32)
    logits[::7, 5] = logits[::7, 9]  # exact ties: the tie rule decides, and they count
    if score == "softmax":
        scores = kernel.softmax(logits, np)
    elif score == "sigmoid":
        scores = kernel.sigmoid(logits, np)
    else:
        scores = np.sqrt(np.logaddexp(logits, np.float32(0)))
    theirs = np.argsort(-scores, axis=1, kind="stable")[:, :4]
    r = oracle.route(logits, spec)
    same = (np.sort(theirs) == np.sort(r.experts)).all(axis=1)
    assert same[~r.ambiguous].all()
    assert oracle.acceptable(r, theirs).all()
    if scale == 1.0:  # at 1e-6 all scores agree to within ulps, at 30 the best are all 1
        assert r.ambiguous.mean() < 0.1


def test_an_exact_tie_is_decided_by_the_rule_and_both_sets_are_acceptable():
    spec = RouterSpec(num_experts=4, k=2)
    r = oracle.route(np.array([[1.0, 0.5, 0.5, 0.0]], np.float32), spec)
    assert r.experts.tolist() == [[0, 1]]
    assert not r.ambiguous[0]
    assert oracle.acceptable(r, [[2, 0]])[0]
    assert not oracle.acceptable(r, [[1, 2]])[0]
    near = np.float32(0.5)
    r = oracle.route(np.array([[1.0, near, np.nextafter(near, np.float32(1)), 0.0]]), spec)
    assert not r.ambiguous[0]  # float64 tells them apart
    r = oracle.route(
        np.array([[1.0, near, np.nextafter(near, np.float32(1)), 0.0]], np.float32), spec
    )
    assert r.experts.tolist() == [[0, 2]]
    assert r.ambiguous[0]
    assert oracle.acceptable(r, [[0, 1]])[0]


@pytest.mark.parametrize("wrong", [[0, 0], [0, 4], [0, -1], [3, 2]])
def test_sets_that_are_never_acceptable(wrong):
    r = oracle.route(np.array([[3.0, 2.0, 1.0, 0.0]]), RouterSpec(num_experts=4, k=2))
    assert not oracle.acceptable(r, [wrong])[0]


def test_group_boundaries_are_ambiguous_too():
    spec = RouterSpec(
        num_experts=6,
        k=2,
        score="sigmoid",
        num_groups=3,
        groups_kept=1,
        group_score="sum_top",
        renormalize="sum",
    )
    tie = np.array([[2.0, -2.0, 1.9999999, -1.9999999, -5.0, -5.0]], np.float32)
    r = oracle.route(tie, spec)
    assert r.ambiguous[0]
    for a, b in itertools.combinations(range(6), 2):
        assert oracle.acceptable(r, [[a, b]])[0] == ((a, b) in [(0, 1), (2, 3)])
    clear = oracle.route(np.array([[2.0, 2.0, 1.0, 1.0, 0.0, 0.0]], np.float32), spec)
    assert not clear.ambiguous[0]


def test_declared_numerics_widen_the_bounds():
    spec = RouterSpec(num_experts=8, k=2, renormalize="sum")
    logits = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    narrow = oracle.route(logits, spec).weights.bound
    half = Numerics(weights="bfloat16")
    assert (oracle.route(logits, spec, numerics=half).weights.bound > 100 * narrow).all()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"logits": np.zeros((2, 3))}, "`logits` must be of shape"),
        ({"experts": np.zeros((3, 2), int)}, "`experts` must be integers of shape"),
        ({"experts": np.full((2, 2), 4)}, r"`experts` must be in \[-1, 4\); got"),
        ({"experts": np.full((2, 2), -2)}, r"`experts` must be in \[-1, 4\); got"),
        ({"mask": np.zeros(2)}, "`mask` must be bool of shape"),
        ({"logits": np.zeros((2, 4), int)}, "`logits.dtype` must be one of"),
    ],
)
def test_errors(more, message):
    arguments = {"logits": np.zeros((2, 4))} | more
    with pytest.raises(ValueError, match=message):
        oracle.route(spec=RouterSpec(num_experts=4, k=2), **arguments)


def test_experts_that_a_bias_excludes():
    spec = RouterSpec(num_experts=4, k=2, score="sigmoid", selection_bias=True)
    bias = np.array([-INF, 0.0, 0.0, -INF])
    r = oracle.route(np.array([[9.0, 1.0, 0.0, 8.0]], np.float32), spec, bias=bias)
    assert r.experts.tolist() == [[1, 2]]
    assert not r.ambiguous[0]
    assert oracle.acceptable(r, [[2, 1]])[0]
    assert not oracle.acceptable(r, [[0, 1]])[0]
