"""Wrong implementations that the suite must notice, and right ones that it must not."""

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants import (
    _dispatch_combine,
    _grouped,
    _grouped_mx,
    _layer,
    _losses,
    _plan,
    _quantize,
    _route,
)
from moe_ref.conformance.mutants._matrix import Matrix as Matrix
from moe_ref.conformance.mutants._matrix import false_alarms as false_alarms
from moe_ref.conformance.mutants._matrix import matrix as matrix
from moe_ref.conformance.mutants._mutant import Mutant as Mutant

MUTANTS: tuple[Mutant, ...] = (
    *_grouped.MUTANTS,
    *_grouped_mx.MUTANTS,
    *_route.MUTANTS,
    *_losses.MUTANTS,
    *_plan.MUTANTS,
    *_layer.MUTANTS,
    *_dispatch_combine.MUTANTS,
    *_quantize.MUTANTS,
)
CORRECT: tuple[Implementation, ...] = (
    *_grouped.CORRECT,
    *_grouped_mx.CORRECT,
    *_route.CORRECT,
    *_losses.CORRECT,
    *_plan.CORRECT,
    *_layer.CORRECT,
    *_dispatch_combine.CORRECT,
    *_quantize.CORRECT,
)
