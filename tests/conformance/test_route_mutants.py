"""Every wrong router and every wrong loss is noticed, and no right one is."""

import functools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from conformance.mutant_rules import alarms_on_smaller_inputs, signatures
from moe_ref import conformance
from moe_ref.conformance.mutants import _losses, _route

MUTANTS = (*_route.MUTANTS, *_losses.MUTANTS)
CORRECT = (*_route.CORRECT, *_losses.CORRECT)
OPS = ("route", "losses")


IDS = {"ids": lambda thing: thing.name}


def statuses(implementation, **options):
    report = conformance.run(implementation, shrink_seconds=0, isolate=False, **options)
    return {result.id: result.status for result in report.results}


@pytest.fixture(scope="module")
def judged():
    """Reports by implementation and seed, from a process that checks no types: it is quicker."""
    tasks = [(m.implementation, 0, m.killers) for m in MUTANTS]
    tasks += [(implementation, seed, ()) for implementation in CORRECT for seed in range(3)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        run = functools.partial(pool.submit, conformance.run, shrink_seconds=0, isolate=False)
        found = {(i.name, seed): run(i, seed=seed, only=only) for i, seed, only in tasks}
        return {key: report.result().results for key, report in found.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, **IDS)
def test_a_mutant_is_killed_by_the_checks_made_for_it(mutant, judged):
    results = judged[mutant.name, 0]
    assert {r.id: r.status for r in results} == dict.fromkeys(mutant.killers, "fail")
    # An exception would be noticed by any check.
    assert not [r.detail for r in results if "Error" in r.detail or "declined" in r.detail]


@pytest.mark.thorough
@pytest.mark.parametrize("implementation", CORRECT, **IDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_right_implementation_passes(implementation, seed, judged):
    results = judged[implementation.name, seed]
    assert not [(r.id, r.detail) for r in results if r.status not in ("pass", "skipped")]
    assert sum(r.status == "skipped" for r in results) <= 3


@pytest.mark.thorough  # `make mutants` judges right variants
@pytest.mark.parametrize("implementation", [_route.CORRECT[0], _losses.CORRECT[0]], **IDS)
def test_the_plain_one_passes(implementation):
    about = {c.id for c in conformance.checks(implementation.op) if c.needs == "autodiff"}
    found = statuses(implementation)
    assert {each for each, status in found.items() if status != "pass"} == about
    assert {found[each] for each in about} == {"skipped"}


@pytest.mark.parametrize("op", OPS)
def test_every_check_kills_a_mutant(op):
    killers = {check for mutant in MUTANTS for check in mutant.killers}
    assert {check.id for check in conformance.checks(op)} <= killers


def test_names_and_faults_are_unique():
    for op in OPS:
        mutants = [m for m in MUTANTS if m.implementation.op == op]
        assert len({m.fault for m in mutants}) == len(mutants)
    assert len({thing.name for thing in (*MUTANTS, *CORRECT)}) == len(MUTANTS) + len(CORRECT)
    assert all(mutant.fault.endswith(".") for mutant in MUTANTS)


@pytest.mark.parametrize("op", OPS)
def test_shapes_do_not_depend_on_the_seed(op):
    first, second = (signatures(op, budget="smoke", seed=seed) for seed in (0, 1))
    assert first == second


@pytest.mark.parametrize(("op", "limit"), [("route", 128), ("losses", 62)])
def test_little_is_compiled(op, limit):
    """One rule, method and shape is one compilation of a jitted kernel: a third of a second."""
    found = set()
    for check in conformance.checks(op):
        for dtype in ("float32", "bfloat16"):
            for case in check.cases(np.random.default_rng(0), dtype, "smoke"):
                if case.once and dtype != "float32":
                    continue
                more = check.related(case).values() if check.related else ()
                for each in (case, *more):
                    arrays = ((n, a.shape, a.dtype.name) for n, a in sorted(each.arrays.items()))
                    found.add((check.method, each.spec, *arrays))
    assert len(found) <= limit


def test_ties_that_may_go_anywhere_are_judged_as_such():
    lowest, anyhow = (
        next(i for i in _route.CORRECT if i.name == f"route, {name}")
        for name in ("Router", "AnyWins")
    )
    assert statuses(anyhow, only=["RTE-02", "RTE-13"]) == {"RTE-02": "skipped", "RTE-13": "pass"}
    assert set(statuses(lowest, only=["RTE-02", "RTE-13"]).values()) == {"pass"}


def test_a_gradient_of_the_logits_alone_is_judged():
    """What the signature says: a kernel need not return one of the bias."""
    right = _route.CORRECT[0]

    def vjp(*arguments, **named):
        return right.vjp(*arguments, **named)[0]

    mine = conformance.Implementation(
        name="mine", op="route", function=right.function, vjp=vjp, arrays="numpy", gradients=True
    )
    assert statuses(mine, only=["RTE-10"]) == {"RTE-10": "pass"}


def test_a_router_without_a_gradient_is_judged_by_its_values():
    right = _route.CORRECT[0]

    def router(logits, spec, **options):
        return right.function(
            np.asarray(logits), spec, **{n: np.asarray(option) for n, option in options.items()}
        )

    gradients = [check.id for check in conformance.checks("route") if check.method == "vjp"]
    found = statuses(router, op="route", only=["RTE-01", *gradients])
    assert found == {"RTE-01": "pass"} | dict.fromkeys(gradients, "skipped")


def test_laws_ask_for_no_sizes_that_are_not_declared():
    """A kernel that takes whole tiles of 8 tokens and experts is not asked for other ones."""
    right = _route.CORRECT[0]

    def router(logits, spec, **options):
        assert not any(size % 8 for size in logits.shape)
        return right.function(logits, spec, **options)

    mine = conformance.Implementation(
        name="tiles",
        op="route",
        function=router,
        arrays="numpy",
        gradients=False,
        batch_invariant=True,
        multiple_of={"tokens": 8, "experts": 8},
    )
    found = statuses(mine, only=["RTE-21", "RTE-23", "RTE-26", "RTE-27"])
    assert found.pop("RTE-21") == "pass"
    assert set(found.values()) == {"skipped"}


def test_counts_that_stop_at_2_to_the_24_are_noticed():
    """The thorough budget counts more tokens than float32 can."""
    (check,) = (c for c in conformance.checks("losses") if c.id == "LOS-06")
    *_, case = check.cases(np.random.default_rng(0), "float32", "thorough")
    tokens = len(case.arrays["logits"])
    assert tokens > 2**24
    right, stuck = np.array([tokens]), np.array([np.float32(tokens + 1)]).astype(np.int64)
    assert check.judge(case, {"load": right}).status == "pass"
    assert check.judge(case, {"load": stuck}).status == "fail"


@pytest.mark.thorough  # `make mutants` judges right variants
@pytest.mark.parametrize("implementation", [_route.CORRECT[0], _losses.CORRECT[0]], **IDS)
def test_laws_hold_on_smaller_inputs(implementation):
    assert alarms_on_smaller_inputs(implementation) == {}
