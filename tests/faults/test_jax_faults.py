"""Public faults of JAX programs around MoE layers, each as the small case that shows it."""

import os
import subprocess
import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from faults.build import WAYS, identity_experts
from moe_ref import oracle
from moe_ref.dispatch import plan, plan_capacity
from moe_ref.layers import MoE
from moe_ref.routing import balance_loss, expert_load, route, router_scores, update_selection_bias
from moe_ref.spec import CapacitySpec, ExpertSpec, LayerSpec, RouterSpec
from properties.judge import assert_within, random_layer

SMALL = LayerSpec(
    d_model=6,
    router=RouterSpec(num_experts=4, k=2, score="sigmoid", selection_bias=True, renormalize="sum"),
    experts=ExpertSpec(d_hidden=3),
)

PER_SAMPLE = textwrap.dedent(
    """
    import sys

    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 2)
    import equinox as eqx
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    from faults.test_jax_faults import SMALL
    from moe_ref.layers import Capacity, Dense, Dropless
    from properties.judge import random_layer

    layer = random_layer(SMALL, dtype="float64", seed=0)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 6)))
    moving, fixed = eqx.partition(layer, eqx.is_inexact_array)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    found = {}
    for way in (Dense(), Dropless(), Capacity(expert_capacity=8)):

        def loss(moving, x):
            y, _ = eqx.combine(moving, fixed)(x[None], execution=way)
            return jnp.sum(y**2)

        def per_sample(moving, x):
            return jax.vmap(jax.grad(loss), (None, 0))(moving, x)

        def total(moving, x):
            return jax.grad(lambda moving: jnp.sum(jax.vmap(loss, (None, 0))(moving, x)))(moving)

        inside = jax.jit(
            jax.shard_map(
                # The parameters are given as an argument and differentiated as such.
                lambda moving, x: per_sample(jax.lax.pcast(moving, "data", to="varying"), x),
                mesh=mesh,
                in_specs=(P(), P("data")),
                out_specs=P("data"),
            )
        )(moving, x)
        placed = jax.device_put(x, NamedSharding(mesh, P("data")))
        summed = jax.jit(total)(moving, placed)
        name = type(way).__name__
        for leaf, (path, _) in zip(
            jax.tree.leaves(inside), jax.tree_util.tree_leaves_with_path(moving), strict=True
        ):
            found[f"{name} inside {jax.tree_util.keystr(path)[1:]}"] = np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(summed):
            found[f"{name} summed {jax.tree_util.keystr(path)[1:]}"] = np.asarray(leaf)
    assert len(jax.devices()) == 2
    np.savez(sys.argv[1], **found)
    """
)


def test_gradients_on_two_devices_are_those_of_each_sample(tmp_path):
    """Inside `shard_map` each sample has its own gradient, not the sum over devices.

    And the gradient of a sharded batch under `jit` is the sum over all samples, counted once.
    """
    program, result = tmp_path / "program.py", tmp_path / "found.npz"
    program.write_text(PER_SAMPLE)
    command = [sys.executable, str(program), str(result)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    layer = random_layer(SMALL, dtype="float64", seed=0)
    x = np.random.default_rng(1).standard_normal((4, 6))
    samples = [sample_gradient(layer, x[i : i + 1]) for i in range(4)]
    found = np.load(result)
    assert len(found.files) == 3 * 2 * 4
    for name in found.files:
        _, kind, parameter = name.split()
        if parameter == "router.selection_bias":
            assert not found[name].any()
            continue
        truths = [get(sample, parameter) for sample in samples]
        if kind == "inside":
            for mine, truth in zip(found[name], truths, strict=True):
                assert_within(mine, truth, name)
        else:
            value = sum(truth.value for truth in truths)
            bound = sum(truth.bound for truth in truths)
            assert (oracle.ratio(found[name], value, bound) <= 1).all(), name
            assert found[name].any()


def environment() -> dict:
    paths = [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}


def sample_gradient(layer, x):
    y, aux = layer(jnp.asarray(x))
    ids = np.asarray(aux.routing.experts)
    return oracle.layer_vjp(x, layer, SMALL, 2 * np.asarray(y), experts=ids)


def get(truth, name):
    for part in name.split("."):
        truth = getattr(truth, part)
    return truth


@pytest.mark.parametrize("score", ["softmax", "softmax_selected", "sigmoid", "sqrt_softplus"])
def test_masking_leaves_no_nan_in_gradients(score):
    """Rows of -inf, of padding, of huge logits, of scores that sum to 0: finite, 0 where masked."""
    spec = RouterSpec(
        num_experts=4, k=2, score=score, renormalize="none" if "selected" in score else "sum"
    )
    inf = np.inf
    rows = jnp.array([[-inf] * 4, [1e4, 0, 0, 0], [np.nan] * 4, [-1e4] * 4, [0, 1, 2, 3.0]])
    mask = jnp.array([True, True, False, True, True])

    def weights(rows):
        return route(rows, spec, mask=mask).weights

    value, back = jax.vjp(weights, rows)
    (gradient,) = back(jnp.asarray(np.random.default_rng(0).standard_normal((5, 2))))
    assert jnp.isfinite(value).all()
    assert jnp.isfinite(gradient).all()
    assert not gradient[2].any()
    assert gradient[4].any()
    (gradient,) = jax.vjp(lambda rows: router_scores(rows, spec=spec), rows)[1](jnp.ones((5, 4)))
    assert jnp.isfinite(gradient[jnp.array([1, 3, 4])]).all()
    if score == "softmax":
        assert not gradient[0].any()


@pytest.mark.parametrize("execution", WAYS.values(), ids=WAYS)
def test_every_path_counts_sentinel_ids_alike(execution):
    """-1 is nobody: not the last expert, in no count, no loss, no output, no gradient."""
    ids = jnp.array([[0], [1], [-1]])
    counts = [1, 1, 0, 0]
    every = CapacitySpec(expert_capacity=3)
    assert expert_load(ids, num_experts=4).tolist() == counts
    assert plan(ids, num_experts=4).group_sizes.tolist() == counts
    assert plan_capacity(ids, num_experts=4, capacity=every).group_sizes.tolist() == counts
    spec = RouterSpec(num_experts=4, k=1)
    routing = route(jnp.zeros((3, 4)), spec, experts=ids)
    assert routing.weights.tolist() == [[0.25], [0.25], [0]]
    assert float(balance_loss(routing, spec=spec)) == float(jnp.float64(2) / 3)

    layer = identity_experts(2, 4, k=1, dtype="float64")
    x = jnp.ones((3, 2))

    @eqx.filter_jit
    def pulled(layer, x):
        @eqx.filter_grad(has_aux=True)
        def total(moving):
            layer, x = moving
            y, aux = layer(x, routing=ids, execution=execution)
            return jnp.sum(y), (y, aux)

        return total((layer, x))

    (of_layer, of_x), (y, aux) = pulled(layer, x)
    assert aux.load.tolist() == aux.kept.tolist() == counts
    assert not y[2].any()
    assert not of_x[2].any()
    assert y[:2].all()
    touched = np.asarray(of_layer.experts.w_in != 0).any(axis=(1, 2))
    assert touched.tolist() == [True, True, False, False]


@pytest.mark.parametrize("execution", WAYS.values(), ids=WAYS)
def test_other_values_compile_nothing_new(execution):
    """Bias, mask, ids and group sizes are arrays; the spec is hashable. One trace, one program."""
    traces = []

    @eqx.filter_jit
    def step(layer, x, mask, ids):
        traces.append(1)
        y, aux = layer(x, mask=mask, execution=execution)
        z, _ = layer(x, routing=ids, mask=mask, execution=execution)
        bias = update_selection_bias(layer.router.selection_bias, aux.load, rate=0.5)
        return eqx.tree_at(lambda m: m.router.selection_bias, layer, bias), y + z

    layer = random_layer(SMALL, dtype="float32", seed=0)
    rng = np.random.default_rng(0)
    for seed in range(3):
        x = jnp.asarray(rng.standard_normal((5, 6)), jnp.float32)
        mask, ids = jnp.asarray(rng.random(5) < 0.5), jnp.asarray(rng.integers(-1, 4, (5, 2)))
        before = layer.router.selection_bias
        layer, y = step(layer, x, mask, ids)
        assert (layer.router.selection_bias != before).any()
        assert jnp.isfinite(y).all()
        layer = eqx.tree_at(
            lambda m: m.experts, layer, random_layer(SMALL, dtype="float32", seed=seed).experts
        )
    again = MoE.from_arrays(
        SMALL.replace(name="another name, the same rule"),
        {
            "router": {"weight": layer.router.weight, "selection_bias": before},
            "experts": {"w_in": layer.experts.w_in, "w_out": layer.experts.w_out},
        },
    )
    step(again, x, mask, ids)
    assert len(traces) == 1


@pytest.mark.parametrize("transform", [lambda f: f, eqx.filter_jit, eqx.filter_grad])
def test_a_wrong_shape_is_told_by_name_and_size(transform):
    """Shape checks are active inside transformations too."""
    layer = random_layer(SMALL, dtype="float32", seed=0)
    call = transform(lambda layer, x: layer(x)[0].sum())
    with pytest.raises(
        ValueError, match=r"`x` must be Float\[Array, 'tokens d_model'\]; got f32\[2,5,6\]"
    ):
        call(layer, jnp.zeros((2, 5, 6), jnp.float32))
    with pytest.raises(ValueError, match=r"`x` must be of width d_model=6; got \(5, 7\)"):
        call(layer, jnp.zeros((5, 7), jnp.float32))
