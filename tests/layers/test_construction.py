"""The layer as a module: how it is drawn, `from_arrays`, what it is made of."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.small import FULL, KEY, SMALL, WAYS, arrays, drawn, made, run, x_of
from moe_ref.layers import MoE, Router


def test_shapes_are_those_documented():
    layer = eqx.filter_eval_shape(lambda: MoE(FULL, key=KEY))
    found = {
        jax.tree_util.keystr(path).lstrip("."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(layer)
    }
    assert found == {
        "router.weight": (4, 6),
        "router.bias": (4,),
        "router.selection_bias": (4,),
        "router.per_expert_scale": (4,),
        "experts.w_in": (4, 7, 6),
        "experts.w_out": (4, 3, 7),
        "experts.b_in": (4, 6),
        "experts.b_out": (4, 7),
        "shared.w_in": (6, 10),
        "shared.w_out": (5, 6),
        "shared.b_in": (10,),
        "shared.b_out": (6,),
        "shared_gate": (6,),
        "latent_in": (6, 7),
        "latent_out": (7, 6),
        "output_bias": (6,),
    }


def test_what_the_spec_lacks_is_none():
    layer = made(SMALL)
    assert len(jax.tree.leaves(layer)) == 3
    for absent in (layer.shared, layer.shared_gate, layer.latent_in, layer.output_bias):
        assert absent is None


def test_draws_differ_and_have_variance_1_over_fan_in():
    spec = SMALL.replace(d_model=256, d_hidden=64, num_experts=8)
    layer = drawn(spec, KEY)
    for leaf in (layer.router.weight.T, layer.experts.w_in, layer.experts.w_out):
        fan_in, count = leaf.shape[-2], leaf.size
        # Six standard deviations of the mean square of `count` normals.
        assert abs(np.mean(np.square(leaf)) * fan_in - 1) < 6 * (2 / count) ** 0.5
    assert (layer.experts.w_in[0] != layer.experts.w_in[1]).all()
    other = drawn(spec, jax.random.key(1))
    assert (other.experts.w_in != layer.experts.w_in).all()


def test_router_weight_may_be_wider():
    layer = made(SMALL.replace(param_dtype="float32"), "bfloat16")
    assert layer.router.weight.dtype == jnp.float32
    assert layer.experts.w_in.dtype == jnp.bfloat16
    y, aux = run(layer, x_of(SMALL, dtype="bfloat16"))
    assert y.dtype == aux.routing.weights.dtype == jnp.bfloat16


def test_from_arrays_is_the_inverse_of_reading_attributes():
    layer = made(FULL)
    again = MoE.from_arrays(FULL, arrays(layer))
    assert jax.tree.structure(again) == jax.tree.structure(layer)
    jax.tree.map(np.testing.assert_array_equal, again, layer)


def test_from_arrays_keeps_dtypes_and_takes_numpy():
    given = jax.tree.map(lambda a: np.asarray(a, np.float64), arrays(made(FULL)))
    layer = MoE.from_arrays(FULL, given)
    assert {leaf.dtype for leaf in jax.tree.leaves(layer)} == {jnp.dtype("float64")}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "experts.w_in",
            None,
            r"`experts.w_in` must be given, of shape \(4, 7, 6\); it is missing",
        ),
        ("router.bias", None, r"`router.bias` must be given, of shape \(4,\); it is missing"),
        ("output_bias", None, r"`output_bias` must be given"),
        (
            "experts.w_out",
            jnp.zeros((4, 7, 3)),
            r"`experts.w_out` must be of shape \(4, 3, 7\); got",
        ),
        (
            "router.weight",
            jnp.zeros((6, 4)),
            r"`router.weight` must be of shape \(4, 6\); got \(6, 4",
        ),
        ("router.scale", jnp.zeros(4), r"`router.scale` must not be given: the layer has no such"),
        (
            "experts.w_in",
            jnp.zeros((4, 7, 6), int),
            r"`experts.w_in` must be of a kind with float32",
        ),
    ],
)
def test_from_arrays_errors(path, value, message):
    given = arrays(made(FULL))
    *parents, last = path.split(".")
    place = given
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(ValueError, match=message):
        MoE.from_arrays(FULL, given)


def test_from_arrays_takes_no_more_than_there_is():
    given = arrays(made(SMALL))
    given["router"]["bias"] = jnp.zeros(4)
    with pytest.raises(ValueError, match=r"`router.bias` must not be given: the layer has no such"):
        MoE.from_arrays(SMALL, given)


def test_a_layer_is_a_pytree_of_arrays_and_a_hashable_spec():
    layer = made(FULL)
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(layer))
    doubled = jax.tree.map(lambda leaf: leaf * 2, layer)
    assert doubled.spec == layer.spec
    assert hash(layer.spec) == hash(FULL)
    for way in WAYS:
        assert hash(way) is not None
        assert jax.tree.leaves(way) == []


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"`k` must be in \[1, num_experts=4\]; got 9"):
        SMALL.replace(k=9)
    with pytest.raises(ValueError, match=r"`x` must be of width d_model=6; got shape \(5, 4\)"):
        Router(SMALL.router, d_model=6, key=KEY)(jnp.zeros((5, 4), jnp.float32))
    with pytest.raises(ValueError, match=r"MoE.__init__: `key` must be .*; got 0"):
        MoE(SMALL, key=0)
    with pytest.raises(ValueError, match=r"MoE.__init__: `spec` must be LayerSpec; got None"):
        MoE(None, key=KEY)
    with pytest.raises(ValueError, match=r"MoE.from_arrays: `spec` must be LayerSpec; got None"):
        MoE.from_arrays(None, {})
    for dtype in ("floaty", jnp.complex64, "int8"):
        with pytest.raises(ValueError, match=r"`dtype` must be one of bfloat16, float16, .*; got"):
            MoE(SMALL, key=KEY, dtype=dtype)
