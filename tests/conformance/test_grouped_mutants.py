"""The checks of the grouped matmul notice what is wrong, and pass what is right."""

import collections
import dataclasses
import functools

import numpy as np
import pytest

from moe_ref import conformance, oracle
from moe_ref.conformance.mutants._grouped import CORRECT, MUTANTS
from moe_ref.conformance.mutants._grouped_kernel import Kernel, implementation_of
from moe_ref.conformance.suite._data import dtype_of

CHECKS = conformance.checks("grouped_matmul")
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


def _judge(implementation, *, only=(), seed=0):
    return conformance.run(
        implementation, only=only, seed=seed, shrink_seconds=0, isolate=False
    ).results


@pytest.mark.parametrize("mutant", MUTANTS, **IDS)
def test_mutants_are_killed(mutant):
    results = _judge(mutant.implementation, only=mutant.killers)
    assert {r.id: (r.status, r.detail) for r in results if r.status != "fail"} == {}
    # A fault in the form of an exception would be noticed by any check.
    assert not any("declined" in r.detail or "Error" in r.detail for r in results)


@pytest.mark.parametrize("implementation", CORRECT, **IDS)
@pytest.mark.parametrize("seed", range(3))
def test_correct_variants_pass(implementation, seed):
    dtype = implementation.dtypes[seed % len(implementation.dtypes)]
    results = _judge(dataclasses.replace(implementation, dtypes=(dtype,)), seed=seed)
    assert [r for r in results if r.status not in ("pass", "skipped")] == []


@pytest.mark.thorough
@pytest.mark.parametrize("implementation", CORRECT, **IDS)
def test_correct_variants_pass_many_seeds(implementation):
    for seed in range(20):
        results = _judge(implementation, seed=seed)
        assert [r for r in results if r.status not in ("pass", "skipped")] == [], seed


def test_every_capability_is_declared_by_a_correct_variant():
    needed = {check.needs for check in CHECKS if check.needs is not None}
    assert {need for need in needed if any(getattr(i, need) for i in CORRECT)} == needed


def test_every_check_is_some_mutants_killer():
    assert {c.id for c in CHECKS} == set().union(*(mutant.killers for mutant in MUTANTS))


def test_faults_are_written_once():
    for attribute in ("fault", "name"):
        counts = collections.Counter(getattr(mutant, attribute) for mutant in MUTANTS)
        assert [said for said, times in counts.items() if times > 1 or not said] == []


def _signatures(implementation, *, budget, seed):
    """What a kernel is compiled for: method, and shape and dtype of every array."""
    found = set()
    for check in CHECKS:
        for case in _cases(implementation, check, budget, seed):
            forms = ((n, a.shape, a.dtype.name) for n, a in sorted(case.arrays.items()))
            if check.method == "value":
                forms = (form for form in forms if form[0] != "cotangent")
            found.add((check.method, tuple(forms)))
    return found


def _cases(implementation, check, budget, seed):
    for dtype in implementation.dtypes:
        for case in check.cases(np.random.default_rng(seed), dtype, budget):
            yield case
            yield from (check.related(case) if check.related else {}).values()


@pytest.mark.parametrize("budget", ["smoke", "thorough"])
def test_shapes_do_not_depend_on_the_seed(budget):
    kernel = implementation_of(Kernel)
    first, second = (_signatures(kernel, budget=budget, seed=seed) for seed in (0, 1))
    assert first == second


def test_few_shapes_are_compiled():
    assert len(_signatures(implementation_of(Kernel), budget="smoke", seed=0)) <= 80


def test_sizes_around_tile_edges_are_tried_in_both_budgets():
    (check,) = (c for c in CHECKS if c.id == "GRP-06")
    edges = {1, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 251}
    for budget in ("smoke", "thorough"):
        cases = list(check.cases(np.random.default_rng(0), "float32", budget))
        assert edges <= {size for c in cases for size in c.arrays["group_sizes"].tolist()}
        assert edges <= {size for c in cases for size in c.arrays["w"].shape[1:]}


def test_a_check_of_a_gradient_that_is_not_there_is_skipped():
    kernel = next(i for i in CORRECT if i.gradients == ("x",))
    status = {r.id: r.status for r in _judge(kernel, only=["GRP-31", "GRP-32", "GRP-53"])}
    assert status == {"GRP-31": "pass", "GRP-32": "skipped", "GRP-53": "pass"}


def test_a_statistic_is_silent_where_a_declared_error_has_a_direction():
    kernels = {k.name.partition(", ")[2]: k for k in CORRECT}
    for name, reason in {
        "Truncated": "truncated",
        "RoundedOperands": "operands are declared to be rounded",
    }.items():
        kernel = dataclasses.replace(kernels[name], dtypes=("float32",))
        (result,) = _judge(kernel, only=["GRP-17"])
        assert (result.status, reason in result.detail) == ("skipped", True), result.detail
