"""The layer as a module: construction, arguments, dtypes, what it reports."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref.layers import Capacity, Dense, Dropless, MoE, Router
from moe_ref.routing import Routing, jitter
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec, preset
from properties.judge import compiled, random_layer
from spec.shrink import VOCAB, shrink

SMALL = LayerSpec(d_model=6, router=RouterSpec(num_experts=4, k=2), experts=ExpertSpec(d_hidden=3))
FULL = SMALL.replace(
    router_bias=True,
    selection_bias=True,
    per_expert_scale=True,
    expert_bias=True,
    shared_d_hidden=5,
    shared_gate=True,
    d_latent=7,
    output_bias=True,
)
KEY = jax.random.key(0)
WAYS = [Dense(), Dropless(), Capacity(expert_capacity=24)]


def x_of(spec: LayerSpec, tokens: int = 5, dtype="float32"):
    values = np.random.default_rng(1).standard_normal((tokens, spec.d_model))
    return jnp.asarray(values, dtype)


@functools.cache
def made(spec: LayerSpec, dtype: str = "float32") -> MoE:
    return random_layer(spec, dtype=dtype, seed=0)


@compiled
def run(layer, x, **arguments):
    return layer(x, **arguments)


@compiled
def drawn(spec: LayerSpec, key) -> MoE:
    return MoE(spec, key=key)


def arrays(layer: MoE) -> dict:
    """The layer as the nested dict that `from_arrays` takes."""

    def of(module):
        names = [field.name for field in module.__dataclass_fields__.values()]
        found = {name: getattr(module, name) for name in names if name != "spec"}
        return {n: of(v) if isinstance(v, eqx.Module) else v for n, v in found.items()}

    return of(layer)


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


@pytest.mark.parametrize("transform", [lambda f: f, eqx.filter_jit])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": jnp.zeros((5, 7), jnp.float32)}, r"`x` must be of width d_model=6; got \(5, 7\)"),
        ({"x": jnp.zeros(6, jnp.float32)}, r"MoE.__call__: `x` must be .*d_model'\]; got f32\[6\]"),
        ({"x": jnp.zeros((2, 5, 6), jnp.float32)}, r"`x` must be Float.*got f32\[2,5,6\]"),
        ({"x": jnp.zeros((5, 6), jnp.int32)}, r"`x` must be Float.*got i32\[5,6\]"),
        ({"x": jnp.zeros((5, 6))}, r"`x` must be of the parameters' dtype float32; got float64"),
        ({"mask": jnp.ones(4, bool)}, r"`mask` must be Bool.*tokens=5.*got bool\[4\]"),
        ({"mask": jnp.ones(5, int)}, r"`mask` must be Bool.*got i64\[5\]"),
        ({"routing": jnp.zeros((4, 2), int)}, r"`routing` must be .*tokens=5.*got i64\[4,2\]"),
        ({"routing": jnp.zeros((5, 2))}, r"`routing` must be .*got f64\[5,2\]"),
        ({"router_input": jnp.zeros((5, 5), jnp.float32)}, r"`router_input` must be .*d_model=6"),
        ({"execution": "dense"}, r"`execution` must be .*Execution.*; got .*dense"),
        ({"execution": Capacity()}, r"`Capacity` must be given expert_capacity or capacity_factor"),
    ],
)
def test_errors(arguments, message, transform):
    layer = made(SMALL)
    arguments = {"x": x_of(SMALL)} | arguments
    with pytest.raises(ValueError, match=message):
        transform(lambda layer, arguments: layer(**arguments))(layer, arguments)


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"`k` must be in \[1, num_experts=4\]; got 9"):
        SMALL.replace(k=9)
    with pytest.raises(ValueError, match=r"`x` must be of width d_model=6; got shape \(5, 4\)"):
        Router(SMALL.router, d_model=6, key=KEY)(jnp.zeros((5, 4), jnp.float32))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_output_has_the_dtype_of_x_and_losses_at_least_float32(way, dtype):
    layer = made(FULL, dtype)
    y, aux = eqx.filter_eval_shape(lambda x: layer(x, execution=way), x_of(FULL, dtype=dtype))
    wide = "float64" if dtype == "float64" else "float32"
    assert y.shape == (5, 6)
    assert y.dtype == dtype
    assert aux.losses.balance.dtype == aux.losses.z.dtype == wide
    assert aux.load.dtype == aux.kept.dtype == jnp.int32


def test_a_recorded_routing_or_its_ids_replay():
    """The same ids; the weights are recomputed, so those recorded do not matter."""
    layer, x = made(SMALL), x_of(SMALL)
    y, aux = run(layer, x)
    routing = aux.routing
    stale = Routing(routing.experts, routing.weights * 100, routing.scores, routing.logits)
    for recorded in (routing, stale, routing.experts):
        again, aux_again = run(layer, x, routing=recorded)
        assert (again == y).all()
        assert (aux_again.routing.weights == routing.weights).all()
    other, _ = run(layer, x, routing=(routing.experts + 1) % 4)
    assert (other != y).any(axis=1).all()


def test_aux_counts_what_was_routed_and_what_was_kept():
    layer, x = made(SMALL), x_of(SMALL, tokens=9)
    ids = jnp.array([[0, 1]] * 6 + [[2, 0], [-1, 2], [-1, -1]])
    _, aux = run(layer, x, routing=ids, execution=Capacity(expert_capacity=4))
    assert aux.load.tolist() == [7, 6, 2, 0]
    assert aux.kept.tolist() == [4, 4, 2, 0]
    _, aux = run(layer, x, routing=ids, mask=jnp.arange(9) > 0)
    assert aux.load.tolist() == aux.kept.tolist() == [6, 5, 2, 0]


def test_zero_experts_count_and_are_never_dropped():
    spec = SMALL.replace(zero_experts=2)
    layer, x = made(spec), x_of(spec)
    ids = jnp.array([[0, 4]] * 4 + [[5, 5]])
    _, aux = run(layer, x, routing=ids, execution=Capacity(expert_capacity=1))
    assert aux.load.tolist() == [4, 0, 0, 0, 4, 2]
    assert aux.kept.tolist() == [1, 0, 0, 0, 4, 2]


def test_hash_routing_reads_the_table():
    spec = shrink(preset("deepseek-v4-hash"))
    layer, x = drawn(spec, KEY), x_of(spec, tokens=4)
    ids = jnp.array([3, VOCAB - 1, VOCAB, -1])
    _, aux = run(layer, x, token_ids=ids)
    table = layer.router.table
    assert table.shape == (VOCAB, spec.router.k)
    assert (jnp.sort(table, axis=1)[:, 1:] != jnp.sort(table, axis=1)[:, :-1]).all()
    assert aux.routing.experts[:2].tolist() == table[jnp.array([3, VOCAB - 1])].tolist()
    assert (aux.routing.experts[2:] == -1).all()
    with pytest.raises(ValueError, match=r"`token_ids` must be given with hash_vocab=64; got None"):
        run(layer, x)
    with pytest.raises(ValueError, match=r"`token_ids` must be Int.*tokens=4.*got i64\[3\]"):
        run(layer, x, token_ids=ids[:3])
    # A replay needs no table.
    again, _ = run(layer, x, routing=aux.routing)
    assert (again == run(layer, x, token_ids=ids)[0]).all()


def test_the_default_execution_follows_the_spec():
    assert run(made(SMALL), x_of(SMALL, 64))[1].kept.sum() == 128
    limited = shrink(preset("switch-base"))
    _, aux = run(made(limited), x_of(limited, 640))
    assert aux.kept.max() == limited.capacity.expert_capacity
    assert aux.load.sum() == 640 > aux.kept.sum()


def test_router_input_is_read_by_the_router_alone():
    layer, x = made(SMALL), x_of(SMALL)
    noisy = jitter(x, KEY, eps=0.5)

    @eqx.filter_jit
    def both(layer, x, noisy):
        y, aux = layer(x, router_input=noisy)
        routing = layer.router(noisy)
        given = routing.experts, routing.weights, layer.experts
        return y, aux.routing, Dropless()(x, *given, spec=SMALL)[0], routing

    y, routing, of_clean_x, of_noisy = both(layer, x, noisy)
    assert (y == of_clean_x).all()
    jax.tree.map(np.testing.assert_array_equal, routing, of_noisy)
    assert (routing.logits != layer.router(x).logits).all()


def test_a_layer_is_a_pytree_of_arrays_and_a_hashable_spec():
    layer = made(FULL)
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(layer))
    doubled = jax.tree.map(lambda leaf: leaf * 2, layer)
    assert doubled.spec == layer.spec
    assert hash(layer.spec) == hash(FULL)
    for way in WAYS:
        assert hash(way) is not None
        assert jax.tree.leaves(way) == []
