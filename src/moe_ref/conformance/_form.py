"""What a result must look like before its numbers can be judged."""

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations import OPERATIONS, Form

_KINDS = {"float": ("f", "a real floating-point"), "integer": ("iu", "an integer")}
_KINDS["any"] = ("fiu", "a real")


def malformed(op: str, case: Case, outputs: dict[str, np.ndarray]) -> str | None:
    """Say what is wrong with the form of the results; None if nothing is.

    Args:
        op: the operation.
        case: the input.
        outputs: results and gradients by name.

    Returns:
        "y is complex64[3,4], expected a real floating-point array [3, 4]", for example.
    """
    forms = OPERATIONS[op].form(case)
    for name, array in outputs.items():
        if name not in forms:
            return f"{name} is no result of {op}, expected some of {', '.join(forms)}"
        wrong = _wrong(name, array, forms[name])
        if wrong is not None:
            return wrong
    return None


def _wrong(name: str, array: np.ndarray, form: Form) -> str | None:
    kinds, word = _KINDS[form.kind]
    # ml_dtypes' floats are of kind V; so are structured arrays, which have fields.
    small = array.dtype.kind == "V" and array.dtype.fields is None and form.kind != "integer"
    fits = array.ndim == len(form.shape) and all(
        want in (None, have) for have, want in zip(array.shape, form.shape, strict=True)
    )
    if not fits or not (array.dtype.kind in kinds or small):
        wanted = ", ".join("any" if size is None else str(size) for size in form.shape)
        found = f"{array.dtype.name}{list(array.shape)}"
        return f"{name} is {found}, expected {word} array [{wanted}]"
    if form.kind == "integer":
        high = form.high if form.high is not None else 2**63
        outside = (array < form.low) | (array >= high)
        if outside.any():
            limit = f"{form.low} to {high - 1}" if form.high is not None else f"{form.low} or more"
            return f"{name} hold {array[outside][0]}, expected {limit}"
    return None
