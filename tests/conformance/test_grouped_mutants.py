"""The checks of the grouped matmul notice what is wrong, and pass what is right."""

import dataclasses
import functools

import numpy as np
import pytest

from conformance.mutant_rules import (
    SEEDS,
    alarms,
    alarms_on_smaller_inputs,
    judge,
    plain_first,
    signatures,
    survived,
)
from moe_ref import conformance, oracle
from moe_ref.conformance.mutants._grouped import CORRECT, MUTANTS
from moe_ref.conformance.suite._data import dtype_of

CHECKS = conformance.checks("grouped_matmul")
KERNELS = {kernel.name.partition(", ")[2]: kernel for kernel in CORRECT}
IDS = {"ids": lambda each: each.name.partition(", ")[2]}


@pytest.fixture(scope="module", autouse=True)
def _ask_the_oracle_once():
    """Many kernels are judged on the same inputs, and the oracle takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("grouped_matmul", "grouped_matmul_vjp"):
            patch.setattr(oracle, name, _remembering(getattr(oracle, name)))
        yield


def _remembering(function):
    @functools.lru_cache(maxsize=300)
    def known(numerics, *arrays):
        data = [
            np.frombuffer(held, dtype_of(dtype)).reshape(shape) for held, dtype, shape in arrays
        ]
        return function(*data, numerics=numerics)

    def called(*arrays, numerics):
        return known(numerics, *((a.tobytes(), a.dtype.name, a.shape) for a in arrays))

    return called


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, **IDS)
def test_mutants_are_killed(mutant):
    assert survived(mutant) == {}


@pytest.mark.thorough
def test_mutants_compute_something():
    """An exception would be noticed by any check."""
    for mutant in MUTANTS:
        (result,) = judge(mutant.implementation, only=mutant.killers[:1])
        assert "declined" not in result.detail, result
        assert "Error" not in result.detail, result


@pytest.mark.parametrize("implementation", plain_first(CORRECT), **IDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_correct_variants_pass(implementation, seed):
    dtype = implementation.dtypes[seed % len(implementation.dtypes)]
    assert alarms(dataclasses.replace(implementation, dtypes=(dtype,)), seed) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("implementation", CORRECT, **IDS)
def test_correct_variants_pass_many_seeds(implementation):
    for seed in range(20):
        assert alarms(implementation, seed) == {}, seed


def test_laws_hold_on_smaller_inputs():
    assert alarms_on_smaller_inputs(KERNELS["Sequential"]) == {}


def test_every_check_is_some_mutants_killer_and_can_run():
    assert {c.id for c in CHECKS} == set().union(*(mutant.killers for mutant in MUTANTS))
    needed = {check.needs for check in CHECKS if check.needs is not None}
    assert {need for need in needed if any(getattr(i, need) for i in CORRECT)} == needed


def test_faults_are_written_once():
    for attribute in ("fault", "name"):
        said = [getattr(mutant, attribute) for mutant in MUTANTS]
        assert len(set(said)) == len(said)
    assert all(mutant.fault for mutant in MUTANTS)


@pytest.mark.parametrize("budget", ["smoke", "thorough"])
def test_shapes_do_not_depend_on_the_seed(budget):
    first, second = (signatures("grouped_matmul", budget=budget, seed=seed) for seed in (0, 1))
    assert first == second


def test_few_shapes_are_compiled():
    assert len(signatures("grouped_matmul", budget="smoke", seed=0)) <= 120


@pytest.mark.parametrize("budget", ["smoke", "thorough"])
def test_sizes_around_tile_edges_are_tried(budget):
    (check,) = (c for c in CHECKS if c.id == "GRP-06")
    edges = {1, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 251}
    cases = list(check.cases(np.random.default_rng(0), "float32", budget))
    assert edges <= {size for c in cases for size in c.arrays["group_sizes"].tolist()}
    assert edges <= {size for c in cases for size in c.arrays["w"].shape[1:]}


def test_a_check_of_a_gradient_that_is_not_there_is_skipped():
    results = judge(KERNELS["InputGradient"], only=["GRP-31", "GRP-32", "GRP-53"])
    status = {r.id: r.status for r in results}
    assert status == {"GRP-31": "pass", "GRP-32": "skipped", "GRP-53": "pass"}


@pytest.mark.parametrize(
    ("name", "check", "reason"),
    [
        ("Truncated", "GRP-17", "sums are declared to be truncated"),
        ("RoundedOperands", "GRP-17", "operands are declared to be rounded"),
        ("RoundedCotangent", "GRP-46", "cotangents are declared to be rounded"),
        ("WideResults", "GRP-19", "float32 results are not narrow"),
    ],
)
def test_a_statistic_is_silent_where_it_would_blame_what_is_declared(name, check, reason):
    dtype = "bfloat16" if name == "WideResults" else "float32"
    kernel = dataclasses.replace(KERNELS[name], dtypes=(dtype,))
    (result,) = judge(kernel, only=[check])
    assert result.status == "skipped"
    assert reason in result.detail
