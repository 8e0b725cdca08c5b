"""All checks, in the order they run."""

from moe_ref._errors import require_choice
from moe_ref.conformance import (
    _checks_grouped,
    _checks_grouped_gradients,
    _checks_layer,
    _checks_route,
)
from moe_ref.conformance._check import Check
from moe_ref.conformance._operations import OPERATIONS

_CHECKS: tuple[Check, ...] = (
    *_checks_grouped.CHECKS,
    *_checks_grouped_gradients.CHECKS,
    *_checks_route.CHECKS,
    *_checks_layer.CHECKS,
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
