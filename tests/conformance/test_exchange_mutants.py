"""The checks of `dispatch_combine` notice what is wrong, and pass what is right."""

import numpy as np
import pytest

from conformance.mutant_rules import (
    SEEDS,
    alarms,
    alarms_on_smaller_inputs,
    judge,
    passed,
    plain_first,
    signatures,
    survived,
)
from moe_ref import conformance
from moe_ref.conformance.mutants._dispatch_combine import CORRECT, MUTANTS
from moe_ref.conformance.suite._dispatch_combine_traffic import ASYMMETRIC

OP = "dispatch_combine"
IDS = {"ids": lambda each: each.name.partition(", ")[2]}


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, **IDS)
def test_mutants_are_killed(mutant):
    assert survived(mutant) == {}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("implementation", plain_first(CORRECT), **IDS)
def test_correct_variants_pass(implementation, seed):
    assert alarms(implementation, seed) == {}


def test_laws_hold_on_smaller_inputs():
    assert alarms_on_smaller_inputs(CORRECT[0]) == {}


def test_every_check_passes_a_kernel_and_is_some_mutants_killer():
    everything = {c.id for c in conformance.checks(OP)}
    assert passed(CORRECT[0], CORRECT[-1]) == everything
    assert set().union(*(mutant.killers for mutant in MUTANTS)) == everything


def test_faults_are_written_once():
    for attribute in ("fault", "name"):
        said = [getattr(mutant, attribute) for mutant in MUTANTS]
        assert len(set(said)) == len(said)
    assert all(mutant.fault for mutant in MUTANTS)


@pytest.mark.parametrize("budget", ["smoke", "thorough"])
def test_shapes_do_not_depend_on_the_seed(budget):
    first, second = (signatures(OP, budget=budget, seed=seed) for seed in (0, 1))
    assert first == second


def test_few_shapes_are_compiled():
    assert len(signatures(OP, budget="smoke", seed=0)) <= 45


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
    assert (result.status, "cannot be shared" in result.detail) == ("skipped", True)


def test_asymmetric_traffic_differs_everywhere():
    """Rows, columns and the transpose differ, so that no offset is right by accident."""
    assert len({tuple(row) for row in ASYMMETRIC}) == len(ASYMMETRIC)
    assert len({tuple(column) for column in ASYMMETRIC.T}) == len(ASYMMETRIC)
    sender = np.cumsum(ASYMMETRIC, axis=1) - ASYMMETRIC
    receiver = np.cumsum(ASYMMETRIC, axis=0) - ASYMMETRIC
    assert ((sender != receiver) & (ASYMMETRIC > 0)).sum() >= 4
