"""Wrong and right exchanges."""

from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _dispatch_combine_correct,
    _dispatch_combine_gradients,
    _dispatch_combine_rows,
    _dispatch_combine_sizes,
    _dispatch_combine_sums,
    _ids,
    _odd,
    _sequence,
)

MUTANTS = (
    *_dispatch_combine_rows.MUTANTS,
    *_dispatch_combine_sums.MUTANTS,
    *_dispatch_combine_gradients.MUTANTS,
    *_dispatch_combine_sizes.MUTANTS,
    _alongside.MUTANTS["dispatch_combine"],
    *_calls.MUTANTS["dispatch_combine"],
    *_odd.MUTANTS["dispatch_combine"],
    *_sequence.MUTANTS["dispatch_combine"],
    *_ids.MUTANTS["dispatch_combine"],
)
CORRECT = (
    *_dispatch_combine_correct.CORRECT,
    _calls.CORRECT["dispatch_combine"],
    _alongside.CORRECT["dispatch_combine"],
)
