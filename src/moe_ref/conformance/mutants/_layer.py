"""Wrong and right layers."""

from moe_ref.conformance.mutants import (
    _alongside,
    _calls,
    _layer_activation,
    _layer_correct,
    _layer_gradients,
    _layer_large,
    _layer_rounding,
    _layer_routing,
    _layer_values,
)

MUTANTS = (
    *_layer_values.MUTANTS,
    *_layer_activation.MUTANTS,
    *_layer_routing.MUTANTS,
    *_layer_rounding.MUTANTS,
    *_layer_gradients.MUTANTS,
    *_layer_large.MUTANTS,
    _alongside.MUTANTS["layer"],
    *_calls.MUTANTS["layer"],
)
CORRECT = (*_layer_correct.CORRECT, _calls.CORRECT["layer"], _alongside.CORRECT["layer"])
