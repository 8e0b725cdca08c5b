"""Every check of the grouped matmul's values fails for the kernel it was made for."""

import pytest
from conformance.wrong_kernels import RIGHT, WRONG

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
