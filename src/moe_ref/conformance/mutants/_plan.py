"""Wrong and right plans."""

from moe_ref.conformance.mutants import (
    _plan_capacity,
    _plan_correct,
    _plan_gradients,
    _plan_rows,
    _plan_sums,
)

MUTANTS = (
    *_plan_rows.MUTANTS,
    *_plan_sums.MUTANTS,
    *_plan_capacity.MUTANTS,
    *_plan_gradients.MUTANTS,
)
CORRECT = _plan_correct.CORRECT
