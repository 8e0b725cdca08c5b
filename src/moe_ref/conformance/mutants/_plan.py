"""Wrong and right plans."""

from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _ids,
    _odd,
    _plan_capacity,
    _plan_correct,
    _plan_gradients,
    _plan_rows,
    _plan_sizes,
    _plan_sums,
    _sequence,
)

MUTANTS = (
    *_plan_rows.MUTANTS,
    *_plan_sums.MUTANTS,
    *_plan_capacity.MUTANTS,
    *_plan_gradients.MUTANTS,
    *_plan_sizes.MUTANTS,
    _alongside.MUTANTS["plan"],
    *_calls.MUTANTS["plan"],
    *_odd.MUTANTS["plan"],
    *_sequence.MUTANTS["plan"],
    *_ids.MUTANTS["plan"],
)
CORRECT = (*_plan_correct.CORRECT, _calls.CORRECT["plan"], _alongside.CORRECT["plan"])
