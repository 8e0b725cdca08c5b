"""All checks, in the order they run."""

from moe_ref._errors import require_choice
from moe_ref.conformance._check import Check
from moe_ref.conformance.operations import OPERATIONS
from moe_ref.conformance.suite import (
    _alongside,
    _calls,
    _dispatch_combine_gradients,
    _dispatch_combine_laws,
    _dispatch_combine_traffic,
    _dispatch_combine_values,
    _grouped_gradients,
    _grouped_integers,
    _grouped_laws,
    _grouped_linear,
    _grouped_mx_gradients,
    _grouped_mx_laws,
    _grouped_mx_values,
    _grouped_shrinking,
    _grouped_statistics,
    _grouped_values,
    _ids,
    _layer,
    _layer_capacity,
    _layer_gradients,
    _layer_large,
    _layer_laws,
    _layer_statistics,
    _losses,
    _losses_gradients,
    _losses_laws,
    _plan_capacity,
    _plan_gradients,
    _plan_laws,
    _plan_values,
    _quantize_laws,
    _quantize_memory,
    _quantize_shapes,
    _quantize_values,
    _route,
    _route_gradients,
    _route_laws,
    _sequence,
)

_CHECKS: tuple[Check, ...] = (
    *_grouped_values.CHECKS,
    *_grouped_gradients.CHECKS,
    *_grouped_statistics.CHECKS,
    *_grouped_laws.CHECKS,
    *_grouped_linear.CHECKS,
    *_grouped_mx_values.CHECKS,
    *_grouped_mx_gradients.CHECKS,
    *_grouped_mx_laws.CHECKS,
    *_grouped_integers.CHECKS,
    *_grouped_shrinking.CHECKS,
    *_route.CHECKS,
    *_route_gradients.CHECKS,
    *_route_laws.CHECKS,
    *_losses.CHECKS,
    *_losses_gradients.CHECKS,
    *_losses_laws.CHECKS,
    *_plan_values.CHECKS,
    *_plan_laws.CHECKS,
    *_plan_gradients.CHECKS,
    *_plan_capacity.CHECKS,
    *_layer.CHECKS,
    *_layer_gradients.CHECKS,
    *_layer_laws.CHECKS,
    *_layer_statistics.CHECKS,
    *_layer_capacity.CHECKS,
    *_layer_large.CHECKS,
    *_dispatch_combine_values.CHECKS,
    *_dispatch_combine_traffic.CHECKS,
    *_dispatch_combine_laws.CHECKS,
    *_dispatch_combine_gradients.CHECKS,
    *_quantize_values.CHECKS,
    *_quantize_shapes.CHECKS,
    *_quantize_laws.CHECKS,
    *_quantize_memory.CHECKS,
    *_alongside.CHECKS,
    *_calls.CHECKS,
    *_sequence.CHECKS,
    *_ids.CHECKS,
)


def checks(op: str | None = None) -> tuple[Check, ...]:
    """The checks of an operation.

    Args:
        op: one of `OPERATIONS`; None: of all.

    Returns:
        Checks in the order they run.

    Raises:
        ValueError: an unknown operation.
    """
    if op is None:
        return _CHECKS
    require_choice(op, "op", OPERATIONS)
    return tuple(check for check in _CHECKS if check.op == op)
