"""Wrong and right quantisers."""

from moe_ref.conformance.mutants import (
    _quantize_blocks,
    _quantize_correct,
    _quantize_elements,
    _quantize_elsewhere,
    _quantize_memory,
    _quantize_readings,
    _quantize_scale,
    _quantize_special,
)

MUTANTS = (
    *_quantize_scale.MUTANTS,
    *_quantize_elements.MUTANTS,
    *_quantize_readings.MUTANTS,
    *_quantize_blocks.MUTANTS,
    *_quantize_special.MUTANTS,
    *_quantize_elsewhere.MUTANTS,
    *_quantize_memory.MUTANTS,
)
CORRECT = _quantize_correct.CORRECT
