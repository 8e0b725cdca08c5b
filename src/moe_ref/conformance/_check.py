"""A check: a claim, the inputs that try it, and the judge."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Method, Outputs

Kind = Literal["exact", "rounding", "statistics", "gradient", "metamorphic"]
Budget = Literal["smoke", "thorough"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One claim about an operation.

    Attributes:
        id: stable; never reused for another claim.
        op: the operation.
        statement: the claim in one sentence.
        formula: the claim as a formula, or what is compared.
        kind: `exact` (equality), `rounding` (derived bound), `statistics`, `gradient`, or
            `metamorphic` (a law between several calls).
        cases: inputs for a random generator, a dtype and a budget.
        judge: compares the outputs with the oracle.
        method: how the implementation is called.
        related: further inputs that follow from a case; the outputs of the one called `NAME` are
            judged together with the case's own, as `NAME.y` and so on.
        wants: results without which there is nothing to judge: a check of a gradient or of a
            result that the implementation does not have is skipped.
        needs: capability it is about, an attribute of `Implementation`; None for all.
        may_refuse: an implementation may decline these inputs with a clear error.
    """

    id: str
    op: str
    statement: str
    formula: str
    kind: Kind
    cases: Callable[[np.random.Generator, str, Budget], Iterable[Case]]
    judge: Callable[[Case, Outputs], Judgement]
    method: Method = "value"
    related: Callable[[Case], Mapping[str, Case]] | None = None
    wants: tuple[str, ...] = ()
    needs: str | None = None
    may_refuse: bool = False
