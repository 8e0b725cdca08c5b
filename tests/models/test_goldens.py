"""A loaded layer computes what transformers computed, as closely as rounding allows.

Three stages are judged, each from what the judged program itself handed to it: the logits; the
choice and the weights from those logits; the output from that choice and those weights.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.golden import (
    EXACT,
    GOLDENS,
    Call,
    Golden,
    calls,
    recorded_gradients,
    transformers_numerics,
)
from moe_ref import layers, models, oracle
from moe_ref.spec import LayerSpec, Numerics

# Compiling takes most of the time here, and how well it optimises does not matter.
QUICK = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a program computed for one call."""

    logits: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    output: np.ndarray


def recorded_answer(call: Call) -> Answer:
    r = call.recorded
    return Answer(r["router_logits"], r["expert_ids"], r["weights"], r["output"])


def execution(spec: LayerSpec) -> layers.Execution:
    return layers.Capacity() if spec.capacity else layers.Dropless(implementation="loop")


def jitted(function, layer: layers.MoE, *arrays):
    """Call `function(layer, *arrays)` compiled quickly."""
    leaves, rest = eqx.partition(layer, eqx.is_array)

    def whole(leaves, *arrays):
        return function(eqx.combine(leaves, rest), *arrays)

    return jax.jit(whole, compiler_options=QUICK)(leaves, *arrays)


def own_answer(layer: layers.MoE, call: Call) -> Answer:
    def forward(layer, x, token_ids):
        y, aux = layer(x, token_ids=token_ids, execution=execution(layer.spec))
        return aux.routing.logits, aux.routing.experts, aux.routing.weights, y

    ids = None if call.token_ids is None else jnp.asarray(call.token_ids)
    return Answer(*map(np.asarray, jitted(forward, layer, jnp.asarray(call.x), ids)))


def judge(answer: Answer, call: Call, params, spec: LayerSpec, numerics: Numerics) -> None:
    """Every stage within the oracle's bound, and the bound tight enough to tell something."""
    o = oracle.layer(call.x, params, spec, token_ids=call.token_ids, numerics=numerics)
    assert within(answer.logits, o.routing.logits)
    assert oracle.acceptable(o.routing, answer.experts).all()

    routed = oracle.route(
        answer.logits,
        spec.router,
        bias=params["router"]["selection_bias"],
        experts=answer.experts,
        numerics=dataclasses.replace(numerics, logits=answer.logits.dtype.name),
    )
    assert within(answer.weights, routed.weights)

    replay = {"experts": answer.experts, "weights": answer.weights}
    o = oracle.layer(call.x, params, spec, routing=replay, numerics=numerics)
    assert within(answer.output, o.output)
    assert (o.deaf_tokens < 1).all()
    # In bfloat16 an expert whose weights are small is below the rounding of the others.
    if numerics.inputs != "bfloat16":
        assert not (o.deaf_experts(spec.router.num_choices) == 1).any()


def within(actual, judged: oracle.Value) -> bool:
    return bool((oracle.ratio(actual, judged.value, judged.bound) <= 1).all())


def by_expert(experts, weights, choices: int) -> np.ndarray:
    """Weights as a row of all choices; what was not chosen is NaN."""
    dense = np.full((len(experts), choices), np.nan)
    np.put_along_axis(dense, np.asarray(experts), np.asarray(weights, np.float64), axis=1)
    return dense


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
@pytest.mark.parametrize("tag", [EXACT, "float32", "bfloat16"])
def test_recording_is_what_the_spec_describes(golden: Golden, tag: str):
    dtype = "float64" if tag == EXACT else tag
    spec, params = models.read_layer(golden.folder, layer=golden.layer, dtype=dtype)
    numerics = transformers_numerics(spec, dtype)
    for call in calls(golden, spec, tag):
        judge(recorded_answer(call), call, params, spec, numerics)


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.thorough), "bfloat16"])
def test_loaded_layer_in_its_own_numerics(golden: Golden, dtype: str):
    layer = models.load_layer(golden.folder, layer=golden.layer, dtype=dtype)
    spec, params = models.read_layer(golden.folder, layer=golden.layer, dtype=dtype)
    numerics = oracle.numerics_for(spec, dtype)
    for call in calls(golden, spec, dtype)[:1]:
        judge(own_answer(layer, call), call, params, spec, numerics)


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_float64_output_and_gradients(golden: Golden, tmp_path):
    layer = models.load_layer(golden.folder, layer=golden.layer, dtype=jnp.float64)
    spec, params = models.read_layer(golden.folder, layer=golden.layer, dtype="float64")
    every = calls(golden, spec, EXACT)

    def loss(layer, xs):
        ys, routings = [], []
        for call, x in zip(every, xs, strict=True):
            ids = None if call.token_ids is None else jnp.asarray(call.token_ids)
            y, aux = layer(x, token_ids=ids, execution=execution(spec))
            ys.append(y)
            routings.append(aux.routing)
        pairs = zip(ys, every, strict=True)
        return sum(jnp.sum(y * call.recorded["cotangent"]) for y, call in pairs), (ys, routings)

    def value_and_gradients(layer, xs):
        take = eqx.filter_value_and_grad(lambda both: loss(*both), has_aux=True)
        (_, results), grads = take((layer, xs))
        return results, eqx.filter(grads, eqx.is_array)

    xs = [jnp.asarray(call.x) for call in every]
    (ys, routings), (grads, dx) = jitted(value_and_gradients, layer, xs)

    for call, y, routing in zip(every, ys, routings, strict=True):
        own = Answer(*map(np.asarray, (routing.logits, routing.experts, routing.weights, y)))
        numerics = oracle.numerics_for(spec, "float64")
        judge(own, call, params, spec, numerics)
        o = oracle.layer(call.x, params, spec, token_ids=call.token_ids, numerics=numerics)
        assert within(y, o.output)
        assert within(call.recorded["output"], o.output)
        assert not o.ambiguous.any()
        choices = spec.router.num_choices
        ours = by_expert(routing.experts, routing.weights, choices)
        theirs = by_expert(call.recorded["expert_ids"], call.recorded["weights"], choices)
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        if "dispatch_mask" in call.recorded:
            assert np.array_equal(o.kept.any(axis=1), call.recorded["dispatch_mask"].any(axis=1))

    judged = whole_batch_gradients(every, params, spec)
    theirs = recorded_gradients(golden, spec, tmp_path)
    recorded_dx = np.concatenate([call.recorded["grad_input"] for call in every])
    assert within(np.concatenate(dx), judged.x)
    assert within(recorded_dx, judged.x)
    assert not oracle.deaf(judged.x).all(axis=1).any()
    names = [
        f"{part}.{name}"
        for part in ("experts", "shared")
        for name in ("w_in", "w_out", "b_in", "b_out")
    ]
    names += ["router.weight", "router.bias"]
    names += ["shared_gate", "latent_in", "latent_out", "output_bias"]
    for name in names:
        expected, ours = leaf(judged, name), leaf(grads, name)
        assert (expected is None) == (ours is None) == (leaf(theirs, name) is None), name
        if expected is not None:
            assert within(ours, expected), name
            assert within(leaf(theirs, name), expected), name
    if spec.router.selection_bias:
        assert not np.asarray(grads.router.selection_bias).any()


def whole_batch_gradients(every: list[Call], params, spec: LayerSpec) -> oracle.Gradients:
    """The oracle's gradients over all calls at once: dropped slots are empty slots."""
    x = np.concatenate([call.x for call in every])
    cotangent = np.concatenate([call.recorded["cotangent"] for call in every])
    experts = None
    if spec.capacity is not None:
        mask = np.concatenate([call.recorded["dispatch_mask"] for call in every])
        experts = np.where(mask.any(axis=1), mask.argmax(axis=1), -1)[:, None]
        spec = spec.replace(capacity=None)
    return oracle.layer_vjp(
        x, params, spec, cotangent, token_ids=every[0].token_ids, experts=experts
    )


def leaf(record, name: str):
    """`a.b` of nested mappings or objects; None where either is absent."""
    for part in name.split("."):
        if record is None:
            return None
        record = record.get(part) if isinstance(record, dict) else getattr(record, part)
    return record


def test_as_in_the_documentation():
    golden = next(g for g in GOLDENS if g.name == "mixtral")
    layer = models.load_layer(golden.folder, layer=1)
    (call,) = calls(golden, layer.spec, "float32")
    y = jitted(lambda layer, x: layer(x)[0], layer, jnp.asarray(call.x))
    o = oracle.layer(call.x, layer, layer.spec)
    assert within(y, o.output)
    assert within(call.recorded["output"], o.output)
