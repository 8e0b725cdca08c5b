"""A call of the layer: arguments, dtypes, what it reports."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.small import FULL, KEY, SMALL, WAYS, drawn, made, run, x_of
from moe_ref.layers import Capacity, Dropless
from moe_ref.routing import Routing, jitter
from moe_ref.spec import preset
from spec.shrink import VOCAB, shrink


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
