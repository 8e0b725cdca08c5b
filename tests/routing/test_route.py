"""Routing as a whole, beside the oracle on the same logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_ref import oracle
from moe_ref.conformance import strategies
from moe_ref.routing import Routing, route
from moe_ref.spec import RouterSpec
from routing.rules import RULES

TOKENS = 6
CASES = [(name, "float64") for name in RULES]
CASES += [(name, "float32") for name in ("biased", "softplus", "groups-by-max")]
CASES += [(name, "bfloat16") for name in ("renormalised", "selected", "groups-by-sum")]
compiled = jax.jit(route, static_argnames="spec")


def parameters(spec: RouterSpec, dtype: str, *, level: bool = False) -> dict:
    rng = np.random.default_rng(3)
    bias = np.full(spec.num_choices, 0.5) if level else rng.standard_normal(spec.num_choices)
    given = {}
    if spec.selection_bias:
        given["bias"] = jnp.asarray(bias, "float64" if dtype == "float64" else "float32")
    if spec.per_expert_scale:
        given["per_expert_scale"] = jnp.asarray(rng.uniform(0.5, 2, spec.num_choices), dtype)
    return given


def assert_close(routing: Routing, truth: oracle.RouteResult) -> None:
    for name in ("weights", "scores"):
        wanted = getattr(truth, name)
        assert (oracle.ratio(getattr(routing, name), wanted.value, wanted.bound) <= 1).all(), name


@pytest.mark.parametrize(("name", "dtype"), CASES)
@settings(max_examples=max(1, settings.default.max_examples // 3))
@given(data=st.data())
def test_route_equals_the_oracle(name, dtype, data):
    """Ids equal where rounding does not decide, ties included; weights and scores in bounds."""
    spec = RULES[name]
    logits = data.draw(strategies.logits(spec, tokens=TOKENS, dtype=dtype))
    mask = data.draw(strategies.masks(tokens=TOKENS))
    given = parameters(spec, dtype, level=data.draw(st.booleans()))
    routing = compiled(logits, spec=spec, mask=mask, **given)
    own = oracle.route(logits, spec, mask=mask, **given)
    chosen = np.asarray(routing.experts)
    assert oracle.acceptable(own, chosen).all()
    sure = ~own.ambiguous
    # In the same order too, unless two of the chosen are within rounding of each other.
    assert (np.sort(chosen[sure], axis=1) == np.sort(own.experts[sure], axis=1)).all()
    assert_close(routing, oracle.route(logits, spec, mask=mask, experts=chosen, **given))
    assert (np.asarray(routing.logits) == np.where(mask[:, None], logits, 0)).all()


@pytest.mark.parametrize("spec", RULES.values(), ids=RULES)
@settings(max_examples=max(1, settings.default.max_examples // 3))
@given(data=st.data())
def test_recorded_ids_get_live_weights(spec, data):
    logits = data.draw(strategies.logits(spec, tokens=TOKENS, dtype="float64"))
    ids = data.draw(strategies.routings(tokens=TOKENS, k=spec.k, num_choices=spec.num_choices))
    given = parameters(spec, "float64")
    routing = compiled(logits, spec=spec, experts=ids, **given)
    assert (np.asarray(routing.experts) == ids).all()
    assert_close(routing, oracle.route(logits, spec, experts=ids, **given))
    assert not np.asarray(routing.weights)[ids == -1].any()


def test_recorded_ids_out_of_range_are_empty_slots():
    """A replayed -2 or 99 never wraps round to another expert."""
    spec = RULES["softmax"]
    ids = jnp.array([[0, 8, 1], [-2, 99, -1]])
    routing = route(jnp.zeros((2, 8)), spec, experts=ids)
    assert routing.experts.tolist() == [[0, -1, 1], [-1, -1, -1]]
    assert routing.weights.tolist() == [[0.125, 0, 0.125], [0, 0, 0]]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64"])
def test_recorded_ids_of_any_integer_dtype(dtype):
    routing = route(jnp.zeros((1, 8)), RULES["softmax"], experts=jnp.array([[7, 0, 3]], dtype))
    assert routing.experts.dtype == jnp.int32
    assert routing.experts.tolist() == [[7, 0, 3]]


@pytest.mark.parametrize("name", ["softmax", "biased", "groups-by-sum", "selected"])
def test_padding_reaches_nothing(name):
    """Rows of NaN, inf or zeros behind the mask give the same bits, in value and gradient."""
    spec = RULES[name]
    given = parameters(spec, "float64")
    logits = np.random.default_rng(0).standard_normal((TOKENS, spec.num_choices))
    mask = jnp.array([True, False, True, True, False, False])

    @jax.jit
    def run(logits, cotangent):
        def weights(logits):
            routing = route(logits, spec, mask=mask, **given)
            return routing.weights, routing

        value, back, routing = jax.vjp(weights, logits, has_aux=True)
        return value, routing, back(cotangent)[0]

    cotangent = np.random.default_rng(1).standard_normal((TOKENS, spec.k))
    clean = run(np.where(mask[:, None], logits, 0), cotangent)
    for filler in (np.nan, np.inf, -np.inf):
        dirty = run(np.where(mask[:, None], logits, filler), cotangent)
        jax.tree.map(np.testing.assert_array_equal, dirty, clean)
    weights, routing, gradient = clean
    assert (np.asarray(routing.experts)[~mask] == -1).all()
    assert not np.asarray(weights)[~mask].any()
    assert not np.asarray(gradient)[~mask].any()
    assert np.asarray(gradient)[mask].any()


def test_no_tokens():
    routing = route(jnp.zeros((0, 8)), RULES["softmax"])
    assert routing.experts.shape == routing.weights.shape == (0, 3)


def test_dtypes_are_those_named():
    """Scores in score_dtype, weights in weight_dtype or that of x, and float64 never narrowed."""
    spec = RouterSpec(num_experts=4, k=2, score_dtype="float32", weight_dtype=None)

    def dtypes(logits_dtype, **options):
        routing = route(jnp.zeros((1, 4), logits_dtype), spec, **options)
        return routing.logits.dtype, routing.scores.dtype, routing.weights.dtype

    assert dtypes("bfloat16") == (jnp.bfloat16, jnp.float32, jnp.bfloat16)
    assert dtypes("float32", dtype=jnp.bfloat16) == (jnp.float32, jnp.float32, jnp.bfloat16)
    assert dtypes("float64") == (jnp.float64,) * 3


GOOD = {"logits": jnp.zeros((2, 8)), "spec": RULES["softmax"]}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"logits": jnp.zeros((2, 9))},
            r"`logits` must be one column for each of num_choices=8; got",
        ),
        ({"logits": jnp.zeros((2, 8, 1))}, r"route: `logits` must be Float.*got f64\[2,8,1\]"),
        ({"logits": jnp.zeros((2, 8), int)}, r"route: `logits` must be Float.*got i64\[2,8\]"),
        ({"bias": jnp.zeros(8)}, r"`bias` must be None with selection_bias=False; got an array"),
        (
            {"spec": RULES["biased"], "bias": jnp.zeros(7)},
            r"`bias` must be .*choices=8; got f64\[7\]",
        ),
        ({"mask": jnp.ones(3, bool)}, r"`mask` must be .*tokens=2.*; got bool\[3\]"),
        ({"mask": jnp.ones(2)}, r"`mask` must be Bool\[Array, 'tokens'\].*; got f64\[2\]"),
        ({"experts": jnp.zeros((2, 3))}, r"`experts` must be .*Int\[.*; got f64\[2,3\]"),
        ({"experts": jnp.zeros((3, 3), int)}, r"`experts` must be .*tokens=2.*; got i64\[3,3\]"),
        ({"per_expert_scale": jnp.ones(8)}, r"`per_expert_scale` must be given exactly when"),
        (
            {"spec": RouterSpec(num_experts=8, k=3, per_expert_scale=True)},
            "`per_expert_scale` must",
        ),
        (
            {"spec": RouterSpec(num_experts=8, k=3, hash_vocab=5)},
            r"`experts` must be given with hash",
        ),
    ],
)
def test_errors(changes, message, transform):
    arguments = GOOD | changes
    spec = arguments.pop("spec")
    with pytest.raises(ValueError, match=message):
        transform(lambda arguments: route(spec=spec, **arguments))(arguments)
