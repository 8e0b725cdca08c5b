"""Public faults of precision and integer width, each as the small case that shows it."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from faults.build import WAYS, constant_experts, run
from moe_ref import dispatch, oracle
from moe_ref.grouped import grouped_matmul, implementations
from moe_ref.layers import MoE
from moe_ref.routing import expert_load, route, router_logits
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec, preset
from properties.judge import random_layer


@pytest.mark.parametrize("execution", WAYS.values(), ids=WAYS)
def test_expert_outputs_are_summed_in_float32_and_rounded_once(execution):
    """256 and seven ones in bfloat16: each addition alone would leave 256; the sum is 263."""
    layer = constant_experts(
        [[512.0]] + [[2.0]] * 7, k=8, dtype="bfloat16", score="sigmoid", weight_dtype="bfloat16"
    )
    y, aux = run(layer, jnp.ones((3, 1), jnp.bfloat16), execution=execution)
    assert (aux.routing.weights == 0.5).all()
    assert y.dtype == jnp.bfloat16
    assert y.tolist() == [[264.0]] * 3


PROBABILITIES = [0.1250, 0.1251, 0.1252, 0.1253, 0.1, 0.1, 0.15, 0.15]


@pytest.mark.parametrize(
    ("projection", "wanted"), [("float32", [6, 7, 3, 2]), (None, [6, 7, 0, 1])]
)
def test_a_bfloat16_router_merges_what_a_float32_router_tells_apart(projection, wanted):
    """The dtype of each stage is a named choice; the wide one tells close experts apart."""
    spec = RouterSpec(
        num_experts=8,
        k=4,
        score="none",
        param_dtype="float32",
        projection_dtype=projection,
        score_dtype=None,
    )
    x, weight = jnp.ones((1, 1), jnp.bfloat16), jnp.array([PROBABILITIES], jnp.float32).T
    routing = route(router_logits(x, weight, spec=spec), spec, dtype=x.dtype)
    assert routing.experts.tolist() == [wanted]
    assert routing.weights.dtype == jnp.bfloat16


def test_deepseek_v3_keeps_the_router_in_float32_for_bfloat16_tokens():
    layer = random_layer(
        preset("deepseek-v3").replace(d_model=8, d_hidden=4, num_experts=16, shared_d_hidden=4),
        dtype="bfloat16",
        seed=0,
    )
    _, aux = run(layer, jnp.ones((2, 8), jnp.bfloat16))
    routing = aux.routing
    assert layer.router.weight.dtype == jnp.float32
    assert routing.logits.dtype == routing.scores.dtype == routing.weights.dtype == jnp.float32
    assert aux.losses.balance.dtype == jnp.float32


@pytest.mark.parametrize("way", WAYS)
def test_a_token_does_not_depend_on_the_tokens_around_it(way):
    """Alone, or anywhere among others: the same experts, and the output within one bound."""
    spec = LayerSpec(
        d_model=16,
        router=RouterSpec(num_experts=8, k=2, renormalize="sum"),
        experts=ExpertSpec(d_hidden=8),
    )
    layer = random_layer(spec, dtype="float32", seed=0)
    x = np.random.default_rng(1).standard_normal((33, 16)).astype(np.float32)
    order = np.random.default_rng(2).permutation(33)
    truth = oracle.layer(x, layer, spec)
    assert not truth.ambiguous.any()
    for tokens in ([0], [0, 1], order):
        y, aux = run(layer, jnp.asarray(x[tokens]), execution=WAYS[way])
        assert (np.asarray(aux.routing.experts) == truth.routing.experts[tokens]).all()
        assert (oracle.ratio(y, truth.value[tokens], truth.bound[tokens]) <= 1).all()


def test_small_outputs_are_judged_at_their_own_scale():
    """x of size 1e-5 gives outputs far below any absolute tolerance.

    Zeros must fail everywhere, and so must a fault in sixteen of the columns.
    """
    spec = LayerSpec(
        d_model=32, router=RouterSpec(num_experts=4, k=2), experts=ExpertSpec(d_hidden=16)
    )
    layer = random_layer(spec, dtype="float32", seed=0)
    x = (1e-5 * np.random.default_rng(0).standard_normal((8, 32))).astype(np.float32)
    y, aux = run(layer, jnp.asarray(x))
    truth = oracle.layer(x, layer, spec, experts=np.asarray(aux.routing.experts))
    assert np.abs(truth.value).max() < 1e-4
    judged = functools.partial(oracle.ratio, value=truth.value, bound=truth.bound)
    assert (judged(y) <= 1).all()
    assert (judged(np.zeros_like(y)) > 1).any(axis=1).all()
    corrupted = np.array(y)
    corrupted[:, ::2] *= 1 + 2.0**-10
    beyond = judged(corrupted) > 1
    assert beyond[:, ::2].any(axis=1).all()
    assert not beyond[:, 1::2].any()


def test_more_elements_than_int32_counts():
    """56,000 tokens, 8 experts each, width 7168: 3.2e9 elements. Rows are indexed, not bytes."""
    tokens, k, d = 56_000, 8, 7168
    ids = jax.ShapeDtypeStruct((tokens, k), jnp.int32)
    x = jax.ShapeDtypeStruct((tokens, d), jnp.bfloat16)

    def moved(x, ids):
        plan = dispatch.plan(ids, num_experts=256)
        rows = dispatch.permute(x, plan)
        return rows, dispatch.combine(rows, None, plan), plan

    rows, y, plan = jax.eval_shape(moved, x, ids)
    assert rows.shape == (tokens * k, d)
    assert rows.size > 2**31
    assert y.shape == (tokens, d)
    assert plan.slot.dtype == plan.row.dtype == plan.group_sizes.dtype == jnp.int32
    spec = preset("deepseek-v3").replace(d_model=d, d_hidden=256)
    like = eqx.filter_eval_shape(lambda: MoE(spec, key=jax.random.key(0), dtype=jnp.bfloat16))
    out, aux = eqx.filter_eval_shape(lambda layer, x: layer(x), like, x)
    assert out.shape == (tokens, d)
    assert aux.load.dtype == jnp.int32


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64"])
def test_group_sizes_of_any_dtype_are_summed_wide(implementation, dtype):
    """200 + 100 wraps to 44 in uint8."""
    x = jnp.arange(300, dtype=jnp.float32)[:, None]
    w = jnp.array([[[1.0]], [[-1.0]]], jnp.float32)
    sizes = jnp.array([200, 100], dtype)
    y = jax.jit(functools.partial(grouped_matmul, implementation=implementation))(x, w, sizes)
    assert (y == jnp.where(jnp.arange(300)[:, None] < 200, x, -x)).all()


def test_rows_beyond_int16_and_counts_beyond_float32():
    rows = 40_001
    x = jnp.ones((rows, 1), jnp.float32)
    w = jnp.array([[[1.0]], [[2.0]]], jnp.float32)
    y = jax.jit(grouped_matmul)(x, w, jnp.array([rows - 1, 1], jnp.uint16))
    assert y[-2:, 0].tolist() == [1.0, 2.0]
    # 2^24 + 1 is no float32: counts are integers from the first to the last addition.
    counts = jax.eval_shape(
        lambda ids: expert_load(ids, num_experts=4), jax.ShapeDtypeStruct((2**25, 1), jnp.int32)
    )
    assert counts.dtype == jnp.int32
