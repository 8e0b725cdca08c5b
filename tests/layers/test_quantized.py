"""Experts on MX operands, against the parts of the oracle.

How an operand is rounded hangs on its last bit, so no bound on a hidden layer bounds what follows.
Here the sums that are quantised again are exact in float32, in any order: the oracle gives them a
bound of 0, each further operation rounds once, and so the operands are known to the bit.
"""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.layers import Dropless, MoE
from moe_ref.oracle._arithmetic import add, multiply
from moe_ref.oracle._dot import dot, dot_rows
from moe_ref.oracle._formats import FORMATS, Formats
from moe_ref.oracle._sum import Sum
from moe_ref.oracle._value import Value, exact, narrowed
from moe_ref.spec import ExpertSpec, LayerSpec, MXSpec, Numerics, RouterSpec
from properties.judge import compiled, pull

TOKENS, K, NUM, D, HIDDEN = 60, 2, 5, 40, 36  # blocks of 32, and of what is left
WIDE = FORMATS["float32"]
F32 = Formats(Numerics())
CASES = {
    "output": (MXSpec(), "float32"),
    "hidden": (
        MXSpec(format="mxfp8_e5m2", rule="floor", nonfinite="te", wgrad="requantize"),
        "float32",
    ),
    "input": (MXSpec(wgrad="high_precision_matmul"), "float32"),
    "bfloat16": (MXSpec(rule="ceil"), "bfloat16"),
}


def spec_of(case: str) -> LayerSpec:
    return LayerSpec(
        d_model=D,
        router=RouterSpec(num_experts=NUM, k=K, score="none"),
        experts=ExpertSpec(d_hidden=HIDDEN, activation="relu", expert_bias=True),
        weight_site="output" if case == "bfloat16" else case,
    )


@functools.cache
def drawn(case: str):
    """Five-bit numbers, which have more bits than elements; routing weights are powers of two."""
    rng, spec = np.random.default_rng(0), spec_of(case)
    dtype = np.dtype(ml_dtypes.bfloat16 if CASES[case][1] == "bfloat16" else np.float32)

    def draw(*shape, by=1.0):
        return (rng.integers(-31, 32, shape) * by).astype(dtype)

    router = np.zeros((NUM, D), dtype)
    router[:, 0] = 2.0 ** (np.arange(NUM) % 3 - 1)
    x, cotangent = draw(TOKENS, D), draw(TOKENS, D)
    x[:, 0] = 1
    # Expert 3 has no row, expert 0 more than a block of them.
    ids = rng.choice([0, 1, 2, 4, -1], (TOKENS, K), p=[0.6, 0.1, 0.1, 0.1, 0.1])
    parameters = {
        "w_in": draw(NUM, D, 2 * HIDDEN, by=1 / 16), "w_out": draw(NUM, HIDDEN, D, by=1 / 16),
        "b_in": draw(NUM, 2 * HIDDEN), "b_out": draw(NUM, D),
    }  # fmt: skip
    arrays = {"router": {"weight": router}, "experts": parameters}
    layer = MoE.from_arrays(spec, jax.tree.map(jnp.asarray, arrays))
    return layer, x, cotangent, ids


@compiled
def run(layer, x, cotangent, ids, execution):
    y, _, gradients = pull(lambda m, x: m(x, routing=ids, execution=execution), layer, x, cotangent)
    return y, gradients


def known(value: Value) -> np.ndarray:
    """Numbers that every order of summation gives."""
    assert not value.bound.any()
    return value.value.astype(np.float32)


def float64(array: np.ndarray) -> Value:
    return exact(array.astype(np.float64))


def expected(case: str) -> dict[str, Value]:
    """Output and gradients, from the parts."""
    layer, x, dy, ids = drawn(case)
    mx, site, dtype = CASES[case][0], layer.spec.weight_site, x.dtype
    e = layer.experts
    w_in, w_out, b_in, b_out = (np.asarray(a) for a in (e.w_in, e.w_out, e.b_in, e.b_out))
    router = np.asarray(layer.router.weight)
    p = oracle.permutation(ids, NUM)
    token, sizes, expert = p.tokens, p.group_sizes, ids[p.tokens, p.slots]
    weight = router[expert, :1].astype(np.float32)
    at_input, at_hidden, at_output = (
        weight if site == name else np.ones_like(weight) for name in ("input", "hidden", "output")
    )
    form = {"format": mx.format, "rule": mx.rule, "nonfinite": mx.nonfinite, "numerics": Numerics()}

    read = (x[token].astype(np.float32) * at_input).astype(dtype)
    before = known(oracle.grouped_matmul_mx(read, w_in, sizes, **form))
    before = before + b_in[expert].astype(np.float32)
    gate, up = before[:, :HIDDEN], before[:, HIDDEN:]
    active = np.maximum(gate, 0)
    plain = active * up
    hidden = (plain * at_hidden).astype(dtype)
    bias = b_out[expert].astype(np.float32)
    out = oracle.grouped_matmul_mx(hidden, w_out, sizes, **form)
    out = add(out, float64(bias * at_hidden), WIDE)
    y = Sum((TOKENS, D))
    y.add(token, multiply(out, float64(at_output)))

    own = dy[token].astype(np.float32)
    form |= {"wgrad": mx.wgrad}
    second = oracle.grouped_matmul_mx_vjp(hidden, w_out, sizes, own * at_output, **form)
    d_hidden = known(second.x).astype(dtype).astype(np.float32)
    d_plain = d_hidden * at_hidden
    d_before = np.concatenate([np.where(gate > 0, d_plain * up, 0), d_plain * active], axis=1)
    first = oracle.grouped_matmul_mx_vjp(read, w_in, sizes, d_before, **form)
    along = {
        "output": lambda: dot_rows(float64(own), out, F32),
        "hidden": lambda: dot_rows(
            float64(np.concatenate([d_hidden, own], axis=1)),
            float64(np.concatenate([plain, bias], axis=1)),
            F32,
        ),
        "input": lambda: dot_rows(first.x, float64(x[token]), F32),
    }[site]()
    d_logits, dx = Sum((TOKENS * NUM,)), Sum((TOKENS, D))
    d_logits.add(token * NUM + expert, along[:, 0])
    d_logits = d_logits.total(K, WIDE).map(lambda a: a.reshape(TOKENS, NUM))
    dx.add(token, multiply(first.x, float64(at_input)))
    dx.add(np.arange(TOKENS), dot(d_logits, float64(router), F32))
    of_each = float64(np.eye(NUM)[expert])
    return {
        "y": y.total(K, WIDE),
        "x": dx.total(K + 1, WIDE),
        "router.weight": dot(d_logits.transposed, float64(x), F32),
        "experts.w_in": first.w,
        "experts.w_out": second.w,
        "experts.b_in": dot(of_each.transposed, float64(d_before), F32),
        "experts.b_out": dot(of_each.transposed, float64(own * at_output * at_hidden), F32),
    }


def judge(case: str, execution: Dropless, wanted: dict[str, Value]) -> dict[str, bool]:
    """Which results are those wanted."""
    layer, x, dy, ids = drawn(case)
    y, gradients = run(layer, jnp.asarray(x), jnp.asarray(dy), jnp.asarray(ids), execution)
    results, fits = {"y": y} | gradients, {}
    if CASES[case][1] == "bfloat16":  # routing is rounded, too: not the point here
        results = {name: results[name] for name in results if name not in ("x", "router.weight")}
    for name, result in results.items():
        truth = narrowed(wanted[name], FORMATS[CASES[case][1]], WIDE)
        fits[name] = bool((oracle.ratio(np.asarray(result), truth.value, truth.bound) <= 1).all())
    return fits


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(case):
    way = Dropless("loop", quantization=CASES[case][0])
    fits = judge(case, way, expected(case))
    assert all(fits.values()), fits


def test_not_those_of_the_layer_as_it_is():
    fits = judge("output", Dropless("loop"), expected("output"))
    # The gradient of the last bias is a sum of cotangents alone.
    assert [name for name in fits if fits[name]] == ["experts.b_out"]


def test_beyond_the_bound_of_the_layer_as_it_is():
    layer, x, _, ids = drawn("output")
    wanted = expected("output")
    truth = oracle.layer(x, layer, layer.spec, experts=ids).output
    assert (np.abs(wanted["y"].value - truth.value) > wanted["y"].bound + truth.bound).any()


def test_a_name_stands_for_the_defaults():
    assert Dropless(quantization="mxfp6_e2m3") == Dropless(quantization=MXSpec(format="mxfp6_e2m3"))
    with pytest.raises(ValueError, match=r"`quantization` must be one of .*mxint8.*; got 'fp8'"):
        Dropless(quantization="fp8")


def test_float64_is_refused():
    layer = MoE(spec_of("output"), key=jax.random.key(0), dtype=jnp.float64)
    with pytest.raises(ValueError, match=r"`x.dtype` must be one of bfloat16, .*; got float64"):
        jax.eval_shape(lambda: layer(jnp.ones((2, D)), execution=Dropless(quantization="mxint8")))
