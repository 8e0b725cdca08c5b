"""Every wrong router and every wrong loss is noticed, and no right one is."""

import functools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from moe_ref import conformance
from moe_ref.conformance.mutants import _losses, _route
from moe_ref.conformance.operations import OPERATIONS

MUTANTS = (*_route.MUTANTS, *_losses.MUTANTS)
CORRECT = (*_route.CORRECT, *_losses.CORRECT)
OPS = ("route", "losses")


def name_of(thing):
    return thing.name


def statuses(implementation, **options):
    report = conformance.run(implementation, shrink_seconds=0, isolate=False, **options)
    return {result.id: result.status for result in report.results}


@functools.cache
def cases(op, seed):
    """The cases of every check in both dtypes, with those that follow from them."""
    found = []
    for check in conformance.checks(op):
        for dtype in ("float32", "bfloat16"):
            rng = np.random.default_rng([seed, *check.id.encode()])
            for case in check.cases(rng, dtype, "smoke"):
                more = check.related(case).values() if check.related else ()
                found += [(check, c) for c in (case, *more)]
    return found


@pytest.fixture(scope="module")
def judged():
    """Reports by implementation and seed, from a process that checks no types: it is quicker."""
    tasks = [(m.implementation, 0, m.killers) for m in MUTANTS]
    tasks += [(implementation, seed, ()) for implementation in CORRECT for seed in range(3)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        run = functools.partial(pool.submit, conformance.run, shrink_seconds=0, isolate=False)
        found = {(i.name, seed): run(i, seed=seed, only=only) for i, seed, only in tasks}
        return {
            key: {result.id: result.status for result in report.result().results}
            for key, report in found.items()
        }


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_a_mutant_is_killed_by_the_checks_made_for_it(mutant, judged):
    assert judged[mutant.name, 0] == dict.fromkeys(mutant.killers, "fail")


@pytest.mark.parametrize("implementation", CORRECT, ids=name_of)
@pytest.mark.parametrize("seed", range(3))
def test_a_right_implementation_passes(implementation, seed, judged):
    found = judged[implementation.name, seed]
    assert not [i for i, status in found.items() if status in ("fail", "cannot tell")]
    assert list(found.values()).count("skipped") <= 2


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
    first, second = (
        [
            {n: (array.shape, array.dtype) for n, array in case.arrays.items()}
            for _, case in cases(op, seed)
        ]
        for seed in (0, 1)
    )
    assert first == second


@pytest.mark.parametrize(("op", "limit"), [("route", 110), ("losses", 80)])
def test_little_is_compiled(op, limit):
    """One signature is one compilation of a jitted kernel: about a third of a second."""
    signatures = {
        (
            check.method,
            case.spec,
            tuple((n, a.shape, a.dtype.name) for n, a in sorted(case.arrays.items())),
        )
        for check, case in cases(op, 0)
    }
    assert len(signatures) <= limit


def test_ties_that_may_go_anywhere_are_judged_as_such():
    lowest, anyhow = (
        next(i for i in _route.CORRECT if i.name == f"route.{name}")
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


@pytest.mark.parametrize("op", OPS)
def test_failing_inputs_become_smaller(op):
    """Each piece of an input is an input."""
    for check, case in cases(op, 0):
        for smaller in OPERATIONS[op].smaller(case):
            assert len(smaller.arrays["logits"]) < len(case.arrays["logits"])
            if check.related:
                assert check.related(smaller)
