"""Meshes, layers, routings and the dense truth, for tests on virtual devices."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from moe_ref import oracle, parallel
from moe_ref._varying import vary_together
from moe_ref.layers import MoE
from moe_ref.parallel import _buffer
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec
from properties.judge import compiled, pull, random_layer, verdict

EMULATED = {"transport": "ragged", "ragged": parallel.emulate_ragged_all_to_all}
E, K, TOKENS = 16, 3, 45  # more slots than local experts, and no multiple of the ranks
PLAIN = LayerSpec(
    d_model=6,
    router=RouterSpec(num_experts=E, k=K, score="sigmoid", renormalize="sum"),
    experts=ExpertSpec(d_hidden=4),
    shared_d_hidden=4,
)
FULL = PLAIN.replace(
    router_bias=True,
    selection_bias=True,
    per_expert_scale=True,
    expert_bias=True,
    shared_gate=True,
    d_latent=7,
    output_bias=True,
)


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def zipf(rng, tokens, k, experts):
    popular = 1.0 / np.arange(1, experts + 1)
    draw = lambda: rng.choice(experts, k, replace=False, p=popular / popular.sum())  # noqa: E731
    return np.stack([draw() for _ in range(tokens)])


def half_empty(rng, tokens, k, experts):
    ids = zipf(rng, tokens, k, experts)
    ids[rng.random(ids.shape) < 0.5] = -1
    ids[tokens // 3 : tokens // 2] = -1  # tokens without an expert
    return ids


def one_rank(rng, tokens, k, experts):
    """All to the last two experts, some twice to one."""
    return rng.integers(experts - 2, experts, (tokens, k))


def one_expert(rng, tokens, k, experts):
    return np.full((tokens, k), 5)


def lopsided(rng, tokens, k, experts):
    """The first tokens, hence ranks, send far more than the last; half of the ranks get nothing."""
    ids = rng.integers(0, experts // 2, (tokens, k))
    ids[np.arange(tokens)[:, None] + 6 * np.arange(k) > tokens // 2] = -1
    return ids


def nothing(rng, tokens, k, experts):
    return np.full((tokens, k), -1)


ROUTINGS = [zipf, half_empty, one_rank, one_expert, lopsided, nothing]


@pytest.fixture
def poisoned(monkeypatch):
    """What is not written holds NaN, and ids of real experts."""

    def unwritten(rows, columns, dtype, like):
        if jnp.issubdtype(dtype, jnp.floating):
            fill = jnp.full((rows, columns), jnp.nan, dtype)
        elif dtype == jnp.uint8:
            fill = jnp.full((rows, columns), 0xFF, dtype)  # NaN, as a code and as a scale
        else:
            fill = jnp.arange(rows * columns, dtype=dtype).reshape(rows, columns) % E
        return vary_together(fill, like)[0]

    monkeypatch.setattr(_buffer, "unwritten", unwritten)


@functools.cache
def made(spec: LayerSpec, dtype: str = "float32") -> MoE:
    return random_layer(spec, dtype=dtype, seed=0)


@functools.cache
def truth_of(spec: LayerSpec, draw, tokens: int, dtype: str, nan: str | None):
    """The layer, tokens, cotangent, ids, and what the oracle makes of them."""
    rng = np.random.default_rng(tokens)
    shape = (tokens, spec.d_model)
    x, cotangent = (jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(2))
    ids = draw(rng, tokens, spec.router.k, spec.router.num_experts)
    layer = made(spec, dtype)
    if nan == "token":
        x = x.at[tokens // 2].set(jnp.nan)
    elif nan == "expert":
        layer = eqx.tree_at(lambda m: m.experts.w_in, layer, layer.experts.w_in.at[3].set(jnp.nan))
    truth = oracle.layer(x, layer, spec, experts=ids)
    pulled = oracle.layer_vjp(x, layer, spec, cotangent, experts=ids)
    assert nan or not (truth.deaf_tokens == 1).any(), "the bound exceeds the signal"
    return layer, x, cotangent, jnp.asarray(ids, jnp.int32), truth, pulled


@compiled
def replay(layer, x, cotangent, ids, execution):
    return pull(lambda m, x: m(x, routing=ids, execution=execution), layer, x, cotangent)


def judge(execution, spec, draw, tokens=TOKENS, dtype="float32", nan=None, placed=False):
    """Output, weights and every gradient against the oracle's bound; loads by equality."""
    layer, x, cotangent, ids, truth, pulled = truth_of(spec, draw, tokens, dtype, nan)
    if placed:
        layer = jax.device_put(layer, execution.shardings(layer))
    result = replay(layer, x, cotangent, ids, execution)
    verdict(truth, pulled, result, draw.__name__)
    load = np.bincount(np.asarray(ids)[np.asarray(ids) >= 0], minlength=spec.router.num_experts)
    np.testing.assert_array_equal(result[1].load, load)
    np.testing.assert_array_equal(result[1].kept, load)
    assert not np.asarray(result[1].overflow).any()
