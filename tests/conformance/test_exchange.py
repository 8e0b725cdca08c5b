"""What is asked of the checks of `dispatch_combine` alone."""

import numpy as np

from conformance.mutant_rules import judge
from moe_ref import conformance
from moe_ref.conformance.mutants._dispatch_combine import CORRECT
from moe_ref.conformance.suite._dispatch_combine_traffic import ASYMMETRIC

OP = "dispatch_combine"


def test_traffic_that_is_not_reported_is_not_judged():
    gathers = next(i for i in CORRECT if i.name.endswith("AllGather"))
    status = {r.id: r.status for r in judge(gathers, only=["EXC-27", "EXC-28"])}
    assert status == {"EXC-27": "skipped", "EXC-28": "skipped"}


def test_experts_that_cannot_be_shared_may_be_refused():
    kernel = CORRECT[0]

    def strict(x, experts, weights, scale):
        if len(scale) % len(x):
            raise ValueError(f"{len(scale)} experts cannot be shared by {len(x)} ranks")
        return kernel.function(x, experts, weights, scale)

    implementation = conformance.Implementation(
        name="strict", op=OP, function=strict, arrays="numpy", gradients=False
    )
    (result,) = judge(implementation, only=["EXC-25"])
    assert (result.status, "cannot be shared" in result.detail) == ("pass", True)


def test_asymmetric_traffic_differs_everywhere():
    """Rows, columns and the transpose differ, so that no offset is right by accident."""
    assert len({tuple(row) for row in ASYMMETRIC}) == len(ASYMMETRIC)
    assert len({tuple(column) for column in ASYMMETRIC.T}) == len(ASYMMETRIC)
    sender = np.cumsum(ASYMMETRIC, axis=1) - ASYMMETRIC
    receiver = np.cumsum(ASYMMETRIC, axis=0) - ASYMMETRIC
    assert ((sender != receiver) & (ASYMMETRIC > 0)).sum() >= 4
