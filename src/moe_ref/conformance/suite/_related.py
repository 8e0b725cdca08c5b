"""Several calls of a kernel: their inputs, the manners they are made in, and their judgement."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from moe_ref.conformance._case import Case, Manner
from moe_ref.conformance._check import Budget
from moe_ref.conformance._gather import results_of
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Method, Outputs

Inputs = Callable[[np.random.Generator, str, Budget], Iterable[Case]]
Judge = Callable[[Case, Outputs], Judgement]
Related = Callable[[Case], Mapping[str, Case]]


def chained(*inputs: Inputs) -> Inputs:
    """Inputs, and then others."""

    def drawn(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for some in inputs:
            yield from some(rng, dtype, budget)

    return drawn


def in_manners(inputs: Inputs, *manners: Manner) -> Inputs:
    """The same inputs, each called in every one of some manners."""

    def drawn(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for case in inputs(rng, dtype, budget):
            for manner in manners:
                label = case.label if len(manners) == 1 else f"{case.label}, {manner}"
                yield dataclasses.replace(case, manner=manner, label=label)

    return drawn


def of_method(method: Method, inputs: Inputs) -> Inputs:
    """The same inputs, with a cotangent where one is pulled back."""

    def drawn(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for case in inputs(rng, dtype, budget):
            yield case if method == "vjp" else without(case, "cotangent")

    return drawn


def without(case: Case, name: str) -> Case:
    """The case without one of its arrays."""
    return dataclasses.replace(case, arrays={n: a for n, a in case.arrays.items() if n != name})


def each_of(judge: Judge, related: Related) -> Judge:
    """Judge an input and all that follow from it in the same way."""

    def judged(case: Case, outputs: Outputs) -> Judgement:
        every = {"": case, **related(case)}
        return all_of(*(judge(one, results_of(name, outputs)) for name, one in every.items()))

    return judged


def unchanged(case: Case, outputs: Outputs) -> Judgement:
    """That an input changed is found out beside the kernel, and is a failed call."""
    return Judgement(status="pass")
