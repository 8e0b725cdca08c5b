"""Every check of the grouped matmul's values fails for the kernel it was made for."""

import equinox as eqx
import pytest

from conformance import wrong_layers, wrong_routers
from conformance.wrong_kernels import RIGHT, WRONG, correct
from moe_ref import conformance


def _judge(kernel):
    # A lambda cannot be pickled, so it runs in this process: no start-up for each kernel.
    return conformance.run(lambda *arrays: kernel(*arrays), op="grouped_matmul")


def _failed(kernel) -> set[str]:
    report = _judge(kernel)
    return {result.id for result in report.results if result.status == "fail"}


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
    assert checks <= _failed(kernel)


def test_every_check_of_values_kills_something():
    killers = set().union(*WRONG.values())
    values = {c.id for c in conformance.checks("grouped_matmul") if c.method != "vjp"}
    # GRP-09 needs a declared capability, GRP-03, 05 and 07 share their judge with GRP-02.
    assert values - killers == {"GRP-03", "GRP-05", "GRP-07", "GRP-09"}


def _judge_router(router):
    return conformance.run(lambda *a, **options: router(*a, **options), op="route")


def test_a_legal_router_passes():
    report = _judge_router(wrong_routers.route)
    assert report.ok, [(r.id, r.status, r.detail) for r in report.results if r.status != "pass"]
    assert {r.id for r in report.results if r.status == "skipped"} == {"RTE-08", "RTE-10", "RTE-12"}


@pytest.mark.parametrize(("fault", "checks"), wrong_routers.WRONG.items())
def test_wrong_routers_fail(fault, checks):
    report = _judge_router(wrong_routers.wrong(fault))
    assert checks <= {result.id for result in report.results if result.status == "fail"}


def _judge_layer(layer, check: str) -> str:
    mine = conformance.Implementation(
        name=layer.__name__,
        op="layer",
        function=eqx.filter_jit(lambda *a: layer(*a)),
        dtypes=("float32",),
    )
    (result,) = conformance.run(mine, only=[check]).results
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
