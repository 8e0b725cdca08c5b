"""A check: a claim, the inputs that try it, and the judge."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._result import Judgement
from moe_ref.conformance._worker import Method

Kind = Literal["exact", "rounding", "gradient", "metamorphic"]
Outputs = dict[str, np.ndarray]
Budget = Literal["smoke", "thorough"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One claim about an operation.

    Attributes:
        id: stable; never reused for another claim.
        op: the operation.
        statement: the claim in one sentence.
        formula: the claim as a formula, or what is compared.
        kind: `exact` (equality), `rounding` (derived bound), `gradient`, or `metamorphic`.
        cases: inputs for a dtype, a random generator and a budget.
        judge: compares the outputs with the oracle.
        method: how the implementation is called.
        needs: capability it is about: `zero_tail`; None for all.
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
    needs: str | None = None
    may_refuse: bool = False
