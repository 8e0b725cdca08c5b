"""Every check of the grouped matmul's values fails for the kernel it was made for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance import wrong_gradients, wrong_layers, wrong_routers
from conformance.wrong_kernels import RIGHT, WRONG, correct
from moe_ref import conformance


def _judge(kernel, only=()):
    # A lambda cannot be pickled, so it runs in this process: no start-up for each kernel.
    return conformance.run(
        lambda *arrays: kernel(*arrays), op="grouped_matmul", only=only, shrink_seconds=0
    )


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.__name__)
def test_legal_kernels_pass(kernel):
    report = _judge(kernel)
    assert report.ok, [(r.id, r.status, r.detail) for r in report.results if r.status != "pass"]
    ran = {r.id for r in report.results if r.status == "pass"}
    assert {f"GRP-{n:02d}" for n in range(1, 16) if n != 9} <= ran


@pytest.mark.parametrize(
    ("kernel", "checks"), WRONG.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_wrong_kernels_fail(kernel, checks):
    assert {r.id: r.status for r in _judge(kernel, checks).results} == dict.fromkeys(checks, "fail")


def test_every_check_of_values_kills_something():
    killers = set().union(*WRONG.values())
    values = {c.id for c in conformance.checks("grouped_matmul") if c.method != "vjp"}
    # GRP-09 needs a declared capability, GRP-03, 05 and 07 share their judge with GRP-02.
    assert values - killers == {"GRP-03", "GRP-05", "GRP-07", "GRP-09"}


def _judge_router(router, only=()):
    return conformance.run(
        lambda *a, **options: router(*a, **options), op="route", only=only, shrink_seconds=0
    )


def test_a_legal_router_passes():
    report = _judge_router(wrong_routers.route)
    assert report.ok, [(r.id, r.status, r.detail) for r in report.results if r.status != "pass"]
    assert {r.id for r in report.results if r.status == "skipped"} == {"RTE-08", "RTE-10", "RTE-12"}


@pytest.mark.parametrize(("fault", "checks"), wrong_routers.WRONG.items())
def test_wrong_routers_fail(fault, checks):
    report = _judge_router(wrong_routers.wrong(fault), checks)
    assert {r.id: r.status for r in report.results} == dict.fromkeys(checks, "fail")


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
        conformance.run(correct, op="grouped_matmul", only=["GRP-99"])


@pytest.mark.parametrize(("fault", "rule"), wrong_gradients.WRONG.items())
def test_wrong_gradients_fail(fault, rule):
    kernel = jax.jit(wrong_gradients.wrong(fault))
    mine = conformance.Implementation(
        name=fault, op="grouped_matmul", function=lambda *a: kernel(*a), dtypes=("float32",)
    )
    (result,) = conformance.run(mine, only=[rule[0]], shrink_seconds=0).results
    assert result.status == "fail", result.detail


def test_every_gradient_check_kills_something():
    killers = {check for check, _ in wrong_gradients.WRONG.values()}
    gradients = {c.id for c in conformance.checks("grouped_matmul") if c.method == "vjp"}
    assert gradients - killers == {"GRP-38"}, "GRP-38 needs a declared capability"


def test_a_failing_input_becomes_small():
    def off(x, w, group_sizes):
        y = np.array(correct(x, w, group_sizes))
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
