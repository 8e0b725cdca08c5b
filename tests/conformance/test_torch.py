"""Grouped matmuls in torch, values and gradients by autograd, judged without JAX arrays."""

import pytest

torch = pytest.importorskip("torch")

from conformance import torch_kernels  # noqa: E402
from moe_ref import conformance  # noqa: E402


def _judge(function, only=(), **declared):
    fields = {"name": function.__name__, "op": "grouped_matmul", "arrays": "torch"} | declared
    kernel = conformance.Implementation(function=function, **fields)
    return conformance.run(kernel, only=only, shrink_seconds=0)


@pytest.mark.slow
def test_a_right_one_passes():
    report = _judge(torch_kernels.right, gradients=True, zero_tail=True, may_decline=False)
    assert report.ok, [(r.id, r.status, r.detail) for r in report.results if r.status != "pass"]
    ran = {r.id for r in report.results if r.status == "pass"}
    assert {"GRP-02", "GRP-09", "GRP-31", "GRP-32", "GRP-38"} <= ran
    assert {f"GRP-{number}" for number in range(66, 72)} <= ran


@pytest.mark.parametrize(("function", "killers"), torch_kernels.WRONG.items())
def test_wrong_ones_fail(function, killers):
    report = _judge(function, killers)
    assert {r.id: r.status for r in report.results} == dict.fromkeys(killers, "fail")


def test_arrays_are_guessed():
    """What lives in a module of torch takes its tensors."""
    assert conformance.load_target("torch:matmul", op="grouped_matmul").arrays == "torch"
    mine = conformance.load_target(
        "conformance.torch_kernels:right", op="grouped_matmul", arrays="torch"
    )
    assert conformance.run(mine, only=["GRP-13"]).ok
