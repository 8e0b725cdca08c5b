"""Wrong and right grouped matmuls."""

from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _grouped_correct,
    _grouped_gradients,
    _grouped_numbers,
    _grouped_passes,
    _grouped_poison,
    _grouped_precision,
    _grouped_rows,
    _grouped_special,
    _grouped_tiles,
    _grouped_whole,
    _grouped_workspace,
)

MUTANTS = (
    *_grouped_rows.MUTANTS,
    *_grouped_special.MUTANTS,
    *_grouped_tiles.MUTANTS,
    *_grouped_whole.MUTANTS,
    *_grouped_poison.MUTANTS,
    *_grouped_precision.MUTANTS,
    *_grouped_gradients.MUTANTS,
    *_grouped_passes.MUTANTS["grouped_matmul"],
    *_grouped_numbers.MUTANTS["grouped_matmul"],
    *_grouped_workspace.MUTANTS["grouped_matmul"],
    _alongside.MUTANTS["grouped_matmul"],
    *_calls.MUTANTS["grouped_matmul"],
)
CORRECT = (
    *_grouped_correct.CORRECT,
    _calls.CORRECT["grouped_matmul"],
    _alongside.CORRECT["grouped_matmul"],
)
