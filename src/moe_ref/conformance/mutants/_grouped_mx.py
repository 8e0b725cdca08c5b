"""Wrong and right grouped matmuls on MX operands."""

from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _grouped_mx_blocks,
    _grouped_mx_correct,
    _grouped_mx_operands,
    _grouped_mx_sums,
    _grouped_mx_whole,
    _grouped_numbers,
    _grouped_passes,
    _grouped_workspace,
)

MUTANTS = (
    *_grouped_mx_blocks.MUTANTS,
    *_grouped_mx_operands.MUTANTS,
    *_grouped_mx_sums.MUTANTS,
    *_grouped_mx_whole.MUTANTS,
    *_grouped_passes.MUTANTS["grouped_matmul_mx"],
    *_grouped_numbers.MUTANTS["grouped_matmul_mx"],
    *_grouped_workspace.MUTANTS["grouped_matmul_mx"],
    _alongside.MUTANTS["grouped_matmul_mx"],
    *_calls.MUTANTS["grouped_matmul_mx"],
)
CORRECT = (
    *_grouped_mx_correct.CORRECT,
    _calls.CORRECT["grouped_matmul_mx"],
    _alongside.CORRECT["grouped_matmul_mx"],
)
