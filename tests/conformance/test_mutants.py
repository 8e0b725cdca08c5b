"""Of every operation: its checks notice what is wrong, and pass what is right."""

import pytest

from conformance.mutant_rules import (
    SEEDS,
    alarms,
    alarms_on_smaller_inputs,
    passed,
    signatures,
    survived,
)
from moe_ref import conformance
from moe_ref.conformance.mutants import _dispatch_combine, _grouped_mx, _plan, _quantize

# The operations whose kernels and oracles are quick; files beside this one have the others.
OPERATIONS = {
    "plan": _plan,
    "grouped_matmul_mx": _grouped_mx,
    "dispatch_combine": _dispatch_combine,
    "quantize": _quantize,
}
# Shapes that a kernel is compiled for in a smoke run, at most.
COMPILED = {"plan": 54, "grouped_matmul_mx": 28, "dispatch_combine": 48, "quantize": 46}
OPS = pytest.mark.parametrize("op", OPERATIONS)
RIGHT = [each for module in OPERATIONS.values() for each in module.CORRECT]
WRONG = [each for module in OPERATIONS.values() for each in module.MUTANTS]
IDS = {"ids": lambda each: each.name}


def plain(op):
    """The variant that declares everything a check may need."""
    name = {"grouped_matmul_mx": "Sequential"}.get(op, "")
    return next(each for each in OPERATIONS[op].CORRECT if each.name.endswith(name))


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", WRONG, **IDS)
def test_mutants_are_killed(mutant):
    assert survived(mutant) == {}


@pytest.mark.thorough  # `moe-ref mutants --correct` runs all of them
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("implementation", RIGHT, **IDS)
def test_correct_variants_pass(implementation, seed):
    assert alarms(implementation, seed) == {}


@OPS
def test_laws_hold_on_smaller_inputs(op):
    assert alarms_on_smaller_inputs(plain(op)) == {}


@OPS
def test_every_check_passes_a_kernel_and_is_some_mutants_killer(op):
    module, everything = OPERATIONS[op], {c.id for c in conformance.checks(op)}
    assert passed(plain(op), module.CORRECT[-1]) == everything
    assert set().union(*(mutant.killers for mutant in module.MUTANTS)) == everything


@OPS
def test_faults_are_written_once(op):
    mutants = OPERATIONS[op].MUTANTS
    for attribute in ("fault", "name"):
        said = [getattr(mutant, attribute) for mutant in mutants]
        assert len(set(said)) == len(said)
    assert all(mutant.fault for mutant in mutants)


@pytest.mark.parametrize("budget", ["smoke", "thorough"])
@OPS
def test_shapes_do_not_depend_on_the_seed(op, budget):
    first, second = (signatures(op, budget=budget, seed=seed) for seed in (0, 1))
    assert first == second


@OPS
def test_few_shapes_are_compiled(op):
    assert len(signatures(op, budget="smoke", seed=0)) <= COMPILED[op]
