"""What the tests of mutants ask of an operation's checks."""

import itertools

import numpy as np
import pytest

from moe_ref import conformance
from moe_ref.conformance.operations import OPERATIONS, evaluate

# One is enough to see that a check is sound; `make mutants` has every check try every mutant.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))]


def plain_first(correct):
    """Variants to try: the plain one always, the others in a thorough run."""
    return [correct[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in correct[1:])]


def judge(implementation, *, only=(), seed=0):
    return conformance.run(
        implementation, only=only, seed=seed, shrink_seconds=0, isolate=False
    ).results


def survived(mutant):
    """Checks made for a mutant that did not notice it."""
    results = judge(mutant.implementation, only=mutant.killers)
    return {r.id: (r.status, r.detail) for r in results if r.status != "fail"}


def alarms(implementation, seed):
    """What is held against an implementation that is right."""
    results = judge(implementation, seed=seed)
    return {r.id: r.detail for r in results if r.status not in ("pass", "skipped")}


def passed(plain, differentiated):
    """Checks that the plain variant passes, or, about autodiff, the one that JAX differentiates."""
    about = [c.id for c in conformance.checks(plain.op) if c.needs == "autodiff"]
    results = (*judge(plain), *judge(differentiated, only=about))
    return {r.id for r in results if r.status == "pass"}


def alarms_on_smaller_inputs(implementation):
    """What is held against a right one on inputs like those a failure is made smaller with."""
    operation, found = OPERATIONS[implementation.op], {}
    for check in conformance.checks(implementation.op):
        cases = itertools.islice(check.cases(np.random.default_rng(0), "float32", "smoke"), 1)
        for smaller in (s for case in cases for s in itertools.islice(operation.smaller(case), 3)):
            outputs = evaluate(operation, implementation, check.method, smaller)
            for name, other in (check.related(smaller) if check.related else {}).items():
                more = evaluate(operation, implementation, check.method, other)
                outputs |= {f"{name}.{key}": value for key, value in more.items()}
            judgement = check.judge(smaller, outputs)
            if judgement.status == "fail":
                found[check.id] = judgement.detail
    return found


def signatures(op, *, budget, seed, dtypes=("float32", "bfloat16")):
    """What a kernel is compiled for: method, and shape and dtype of every array."""
    found = set()
    for check in conformance.checks(op):
        for dtype in dtypes:
            for case in check.cases(np.random.default_rng(seed), dtype, budget):
                if case.once and dtype != dtypes[0]:
                    continue
                related = check.related(case).values() if check.related else ()
                found |= {(check.method, _forms(each, check.method)) for each in (case, *related)}
    return found


def _forms(case, method):
    # What is called later is counted as a related input.
    apart = ("later",) if method == "vjp" else ("later", "cotangent")
    names = (n for n in sorted(case.arrays) if n not in apart)
    # A capacity is a number that rows are made for, not an array.
    return tuple(
        (name, int(a) if name == "capacity" else a.shape, a.dtype.name)
        for name, a in ((name, case.arrays[name]) for name in names)
    )
