"""Random layers, all their gradients in one call, and the oracle's verdict on them."""

import functools

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from moe_ref import oracle
from moe_ref.layers import Capacity, Dense, Dropless, Execution, MoE
from moe_ref.spec import CapacitySpec, LayerSpec, preset, presets
from spec.shrink import shrink

TOKENS = 12

# Rules that no preset has.
EXTRA = {
    "hidden-site": preset("gpt-oss-20b").replace(
        weight_site="hidden", activation="silu", score="sigmoid", renormalize="p_norm",
        renormalize_p=2.0, logit_softcap=2.0, per_expert_scale=True, shared_d_hidden=20,
        shared_gate=True,
    ),
    "latent": preset("nemotron-h").replace(
        d_latent=18, activation="gelu_tanh", expert_bias=True, scale_site="output",
        output_bias=True, renormalize="clamp", renormalize_eps=1e-3,
    ),
    "zero-experts-input-site": preset("longcat-flash").replace(
        weight_site="input", activation="gelu", expert_bias=True, k=5, scale=0.5,
    ),
    "few-slots": preset("switch-base").replace(
        k=3, renormalize="sum", renormalize_only_above_one=True, expert_bias=True,
        capacity=CapacitySpec(capacity_factor=1.25, drop_order="k_major"),
    ),
}  # fmt: skip

# One name for presets that differ in size alone.
SPECS: dict[str, LayerSpec] = {
    name: spec
    for spec, name in {
        shrink(spec): name
        for name, spec in {**{name: preset(name) for name in presets()}, **EXTRA}.items()
    }.items()
}


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def executions(spec: LayerSpec, grouped: str = "auto") -> dict[str, Execution]:
    """Every execution, and none of them drops anything from `TOKENS` tokens."""
    return {
        "dense": Dense(),
        "dropless": Dropless(grouped),
        "capacity": Capacity(expert_capacity=TOKENS * spec.router.k),
    }


def random_layer(spec: LayerSpec, *, dtype: str, seed: int, plain_router: bool = False) -> MoE:
    """No parameter is left at 0 or 1, so that each has an effect.

    Args:
        spec: of the layer.
        dtype: of the parameters.
        seed: of the values.
        plain_router: the logits are the first columns of x, the selection bias is level.
    """
    rng = np.random.default_rng(seed)
    like = eqx.filter_eval_shape(lambda: MoE(spec, key=jax.random.key(0), dtype=numpy_dtype(dtype)))

    def draw(leaf):
        if leaf.dtype == jnp.int32:
            rows = [rng.permutation(spec.router.num_choices) for _ in range(leaf.shape[0])]
            return np.stack(rows)[:, : leaf.shape[1]].astype(np.int32)
        fan_in = leaf.shape[-2] if leaf.ndim > 1 else 4
        return (rng.standard_normal(leaf.shape) * fan_in**-0.5).astype(leaf.dtype)

    layer = jax.tree.map(lambda leaf: jnp.asarray(draw(leaf)), like)
    if not plain_router:
        return layer
    weight, bias = layer.router.weight, layer.router.selection_bias
    return eqx.tree_at(
        lambda m: (m.router.weight, m.router.bias, m.router.selection_bias),
        layer,
        (
            jnp.eye(*weight.shape, dtype=weight.dtype),
            None if layer.router.bias is None else jnp.zeros_like(layer.router.bias),
            None if bias is None else jnp.full_like(bias, 0.25),
        ),
        is_leaf=lambda leaf: leaf is None,
    )


def named(tree) -> dict[str, jax.Array]:
    """Leaves by the name they have in the layer, `router.weight`."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in paths}


def pull(function, layer: MoE, x, cotangent):
    """Value and gradients of `function(layer, x) -> (y, aux)`: y, aux, gradients by name."""
    moving, fixed = eqx.partition(layer, eqx.is_inexact_array)
    y, back, aux = jax.vjp(
        lambda moving, x: function(eqx.combine(moving, fixed), x), moving, x, has_aux=True
    )
    for_layer, for_x = back(cotangent)
    return y, aux, {"x": for_x} | named(for_layer)


# Compiling for speed takes longer than running slowly.
compiled = functools.partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def replayed(
    spec: LayerSpec, grouped: str = "auto", *, optimised: bool = False, only: str | None = None
):
    """The executions under one recorded routing: compiled once for a spec and dtype."""

    def run(layer, x, cotangent, ids, mask):
        return {
            name: pull(
                lambda m, x, e=execution: m(x, routing=ids, mask=mask, execution=e),
                layer,
                x,
                cotangent,
            )
            for name, execution in executions(spec, grouped).items()
            if only in (None, name)
        }

    return eqx.filter_jit(run) if optimised else compiled(run)


@compiled
def live(layer, x, cotangent, token_ids):
    """The layer as it comes: its own choice and its own execution."""
    return pull(lambda m, x: m(x, token_ids=token_ids), layer, x, cotangent)


def found(truth: oracle.Gradients, name: str) -> oracle.Value:
    """The oracle's gradient of the parameter `name`."""
    for part in name.split("."):
        truth = getattr(truth, part)
    return truth


def assert_within(actual, truth: oracle.Value, what: str) -> None:
    """`|actual - value| <= bound` everywhere, shapes equal."""
    actual = np.asarray(actual)
    assert actual.shape == truth.value.shape, what
    ratio = oracle.ratio(actual, truth.value, truth.bound)
    at = np.unravel_index(int(ratio.argmax()), ratio.shape) if ratio.size else ()
    assert (ratio <= 1).all(), (
        f"{what}{list(map(int, at))}: got {actual[at]}, expected {truth.value[at]} "
        f"+- {truth.bound[at]}, {int((ratio > 1).sum())} of {ratio.size} beyond"
    )


def assert_audible(truth: oracle.LayerResult) -> None:
    """Zeros would not pass: a draw whose bound exceeds its signal is discarded.

    Recorded ids may have weights that underflow. Where too many draws are discarded, hypothesis
    fails the test.
    """
    hypothesis.assume(not (truth.deaf_tokens == 1).any())


def assert_gradients(gradients: dict, truth: oracle.Gradients, what: str) -> None:
    """Every gradient there is; that of the selection bias is exactly 0."""
    for name, gradient in gradients.items():
        if name == "router.selection_bias":
            assert not np.asarray(gradient).any(), f"{what} d{name} is not 0"
        else:
            assert_within(gradient, found(truth, name), f"{what} d{name}")


def verdict(truth: oracle.LayerResult, pulled: oracle.Gradients, result, what: str) -> None:
    """Judge one execution's output, weights and gradients."""
    y, aux, gradients = result
    assert_within(y, truth.output, f"{what} y")
    assert_within(aux.routing.weights, truth.routing.weights, f"{what} weights")
    assert_gradients(gradients, pulled, what)
