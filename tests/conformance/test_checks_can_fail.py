"""Checks fail for the implementation they were made for, on inputs that become small."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from conformance import wrong_layers
from moe_ref import conformance
from moe_ref.conformance.mutants._grouped_kernel import Kernel


def _judge_layer(layer, check: str) -> str:
    mine = conformance.Implementation(
        name=layer.__name__,
        op="layer",
        function=eqx.filter_jit(lambda *a: layer(*a)),
        dtypes=("float32",),
    )
    (result,) = conformance.run(mine, only=[check], shrink_seconds=0).results
    return result.status


@pytest.mark.parametrize("layer", wrong_layers.WRONG_VALUE, ids=lambda layer: layer.__name__)
def test_wrong_layers_fail(layer):
    assert _judge_layer(layer, "LAY-01") == "fail"


@pytest.mark.parametrize("layer", wrong_layers.WRONG_GRADIENT, ids=lambda layer: layer.__name__)
def test_wrong_layer_gradients_fail(layer):
    assert _judge_layer(layer, "LAY-07") == "fail"


@pytest.mark.parametrize("check", ["LAY-01", "LAY-07"])
def test_a_layer_that_reports_no_routing_can_pass(check):
    assert _judge_layer(wrong_layers.correct, check) == "pass"


def test_an_unknown_check_is_named():
    with pytest.raises(ValueError, match=r"`only` must be one of GRP-01, .*; got 'GRP-99'"):
        conformance.run(Kernel().value, op="grouped_matmul", only=["GRP-99"])


def test_a_failing_input_becomes_small():
    def off(x, w, group_sizes):
        y = Kernel().value(*map(np.asarray, (x, w, group_sizes)))
        y[-1:] = 0
        return y

    report = conformance.run(off, op="grouped_matmul", only=["GRP-02"])
    scope: dict = {}
    exec(report.results[0].counterexample, scope)
    assert scope["x"].size <= 4
    assert scope["w"].size <= 4
    assert scope["group_sizes"].sum() == len(scope["x"])


def test_a_failing_layer_becomes_small():
    report = conformance.run(wrong_layers.zeros, op="layer", only=["LAY-01"], shrink_seconds=20)
    scope: dict = {}
    exec(report.results[0].counterexample, scope)
    assert scope["x"].shape == (1, scope["spec"].d_model)
    assert scope["layer"](jnp.asarray(scope["x"]))[0].shape == scope["x"].shape
