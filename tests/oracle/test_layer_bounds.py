"""Correct kernels stay inside the bounds, faulty ones do not."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import oracle
from oracle import kernel
from oracle.cases import SPECS, case, leaves, parameters, reach

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}


def drawn(name, dtype, seed=0):
    """A case with parameters and tokens of a dtype; steering parameters apart."""
    spec, params, x, more = case(name, seed)

    def cast(a):
        return a.astype(DTYPES[dtype]) if a.dtype.kind == "f" else a

    params = jax.tree.map(cast, params)
    router = {k: v for k, v in params["router"].items() if k not in ("selection_bias", "table")}
    return spec, params, params | {"router": router}, cast(x), more


def inside(actual, expected):
    return oracle.ratio(actual, expected.value, expected.bound).max() <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPECS)
def test_a_correct_kernel_is_inside(name, dtype):
    spec, params, own, x, more = drawn(name, dtype)
    o = oracle.layer(x, params, spec, **more)
    experts = o.routing.experts
    given = {"spec": spec, "experts": experts, "kept": o.kept, "dtype": dtype}
    wide = kernel.wider(dtype, "float32")
    router = jax.tree.map(lambda a: a.astype(wide), own["router"])
    weights = kernel.router_weights(router, x.astype(wide), spec, experts, dtype)
    assert inside(weights, o.routing.weights)
    assert inside(kernel.dense(own, x, weights=None, **given), o.output)

    routing = {"experts": experts, "weights": weights}
    replayed = oracle.layer(x, params, spec, routing=routing)
    assert inside(kernel.dense(own, x, weights=weights, **given), replayed.output)
    assert replayed.deaf_tokens.max() < 1
    assert np.nanmax(replayed.deaf_experts(spec.router.num_choices)) < 1
    assert (replayed.bound <= replayed.worst).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["sqrt-softplus", "gpt-oss-hidden", "gelu-input", "latent", "shared-gate"]
)
def test_correct_gradients_are_inside(name, dtype):
    spec, params, own, x, more = drawn(name, dtype)
    o = oracle.layer(x, params, spec, **more)
    experts = o.routing.experts
    cotangent = np.random.default_rng(1).standard_normal(x.shape).astype(DTYPES[dtype])
    given = {"spec": spec, "experts": experts, "kept": o.kept, "dtype": dtype, "xp": jnp}

    def run(own, x):
        return kernel.dense(own, x, weights=None, **given)

    own, x = jax.tree.map(jnp.asarray, (own, x))
    y, pull = jax.vjp(run, own, x)
    g_own, g_x = pull(jnp.asarray(cotangent).astype(y.dtype))
    g = oracle.layer_vjp(x, params, spec, cotangent, experts=experts, **more)
    assert inside(g_x, g.x)
    for path, _ in leaves(own):
        leaf = g_own
        for part in path:
            leaf = leaf[part]
        assert inside(leaf, reach(g, path)), path
    assert not oracle.deaf(g.x).all(axis=1).any()


CAUGHT = {
    "float32": [
        "gate and up swapped",
        "a slot dropped",
        "expert 1 x 1.01",
        "expert 1 x 1.001",
        "weights x 0.999",
        "weights in bfloat16",
        "combine in bfloat16",
        "hidden in bfloat16",
    ],
    "bfloat16": ["gate and up swapped", "a slot dropped", "expert 1 x 1.05"],
    "float64": ["expert 1 x 1.000000000001", "a slot dropped"],
}


@pytest.mark.parametrize(("dtype", "fault"), [(d, f) for d, fs in CAUGHT.items() for f in fs])
@pytest.mark.parametrize("name", ["softmax-renormalized", "gpt-oss", "sigmoid-groups"])
def test_a_fault_is_outside(name, dtype, fault):
    spec, params, own, x, more = drawn(name, dtype)
    experts = oracle.layer(x, params, spec, **more).routing.experts
    wide = kernel.wider(dtype, "float32")
    router = jax.tree.map(lambda a: a.astype(wide), own["router"])
    weights = kernel.router_weights(router, x.astype(wide), spec, experts, dtype)
    given = {"spec": spec, "experts": experts, "kept": experts >= 0, "dtype": dtype}
    o = oracle.layer(x, params, spec, routing={"experts": experts, "weights": weights})
    assert inside(kernel.dense(own, x, weights=weights, **given), o.output)
    assert not inside(kernel.dense(own, x, weights=weights, fault=fault, **given), o.output)


def test_zero_output_is_outside_at_any_scale():
    spec, params, _, x, _ = drawn("softmax", "float32")
    o = oracle.layer(x * np.float32(1e-5), params, spec)
    assert (np.abs(o.value) > o.bound).mean() > 0.5
    assert o.resolution < oracle.layer(x, params, spec).resolution * 2


def test_float64_is_inside_and_sharp():
    spec, params, own, x, _ = drawn("sigmoid-groups", "float64")
    o = oracle.layer(x, params, spec)
    given = {"spec": spec, "experts": o.routing.experts, "kept": o.kept, "dtype": "float64"}
    assert inside(kernel.dense(own, x, weights=None, **given), o.output)
    assert o.resolution < 1e-12


def test_predicted_variance():
    """The rms of the error of bfloat16 roundings is what the variance says, within a third."""
    spec, params, own, x, _ = drawn("softmax", "bfloat16")
    spec_f32_weights = spec.replace(weight_dtype="float32")
    o = oracle.layer(x, params, spec_f32_weights)
    weights = o.routing.weights.value.astype(np.float32)
    routing = {"experts": o.routing.experts, "weights": weights}
    o = oracle.layer(x, params, spec_f32_weights, routing=routing)
    given = {"experts": o.routing.experts, "kept": o.kept, "dtype": "bfloat16"}
    y = kernel.dense(own, x, spec=spec_f32_weights, weights=weights, **given)
    rms = np.sqrt(np.mean((y - o.value) ** 2 / o.output.variance))
    assert 2 / 3 < rms < 3 / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["latent", "gelu-input", "gpt-oss-hidden", "softmax"])
def test_positive_weights_make_errors_agree_and_are_inside_too(name, dtype):
    """All elements of a row share the errors of the row before; weights of one sign add them up."""
    spec, params, _, x, _ = drawn(name, dtype)
    spec = spec.replace(d_model=96, d_hidden=64, **({"d_latent": 48} if spec.d_latent else {}))
    rng = np.random.default_rng(0)
    for data in ("normal", "positive"):
        params = parameters(spec, rng)
        params = jax.tree.map(lambda a: np.abs(a).astype(DTYPES[dtype]), params)
        x = rng.standard_normal((30, spec.d_model))
        x = (np.abs(x) if data == "positive" else x).astype(DTYPES[dtype])
        experts = np.array([rng.permutation(spec.router.num_experts)[: spec.router.k] for _ in x])
        weights = rng.random(experts.shape).astype(DTYPES[dtype])
        o = oracle.layer(x, params, spec, routing={"experts": experts, "weights": weights})
        given = {"spec": spec, "experts": experts, "kept": o.kept, "dtype": dtype}
        assert inside(kernel.dense(params, x, weights=weights, **given), o.output)


@pytest.mark.parametrize("site", ["output", "hidden"])
def test_the_gradient_of_a_weight_sees_shared_errors_of_the_hidden_layer(site):
    rng = np.random.default_rng(0)
    spec = SPECS["relu"].replace(d_model=200, d_hidden=64, num_experts=1, k=1, weight_site=site)
    shapes = {"w_in": (1, 200, 64), "w_out": (1, 64, 200)}
    experts = {
        k: rng.random(s).astype(np.float32).astype(DTYPES["bfloat16"]) for k, s in shapes.items()
    }
    x = rng.standard_normal((40, 200)).astype(DTYPES["bfloat16"])
    cotangent = np.ones_like(x)
    routing = {"experts": np.zeros((40, 1), int), "weights": np.ones((40, 1), np.float32)}
    numerics = dataclasses.replace(
        oracle.numerics_for(spec, "bfloat16"), weights="float32", cotangent="float32"
    )
    g = oracle.layer_vjp(
        x, {"experts": experts}, spec, cotangent, routing=routing, numerics=numerics
    )
    w_in, w_out = (experts[k][0].astype(np.float32) for k in shapes)
    hidden = np.maximum(x.astype(np.float32) @ w_in, 0)
    forth = (kernel.narrow(hidden, "bfloat16") @ w_out).sum(axis=1, keepdims=True)
    assert inside(forth, g.weights)
    assert not inside(forth * np.float32(1.05), g.weights)
