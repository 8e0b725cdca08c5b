"""Wrong and right exchanges."""

from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _dispatch_combine_correct,
    _dispatch_combine_gradients,
    _dispatch_combine_rows,
    _dispatch_combine_sums,
)

MUTANTS = (
    *_dispatch_combine_rows.MUTANTS,
    *_dispatch_combine_sums.MUTANTS,
    *_dispatch_combine_gradients.MUTANTS,
    _alongside.MUTANTS["dispatch_combine"],
    *_calls.MUTANTS["dispatch_combine"],
)
CORRECT = (
    *_dispatch_combine_correct.CORRECT,
    _calls.CORRECT["dispatch_combine"],
    _alongside.CORRECT["dispatch_combine"],
)
