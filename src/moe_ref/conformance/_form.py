"""What a result must look like before its numbers can be judged."""

import numpy as np

from moe_ref.conformance._case import Case, leaves


def malformed(op: str, case: Case, outputs: dict[str, np.ndarray]) -> str | None:
    """Say what is wrong with the form of the results; None if nothing is.

    Args:
        op: the operation.
        case: the input.
        outputs: results and gradients by name.

    Returns:
        "y is complex64[3,4], expected a real floating-point array [3,4]", for example.
    """
    wanted = {f"grad.{name}": array.shape for name, array in leaves(case.arrays).items()}
    whole: set[str] = set()
    if op == "grouped_matmul":
        wanted["y"] = (len(case.arrays["x"]), case.arrays["w"].shape[2])
    else:
        assert case.spec is not None
        router = case.spec.router
        tokens = len(case.arrays["logits" if op == "route" else "x"])
        whole = {"experts"}
        wanted |= {"experts": (tokens, router.k), "weights": (tokens, router.k)}
        wanted |= {"y": (tokens, case.spec.d_model), "logits": (tokens, router.num_choices)}
    for name, array in outputs.items():
        shape = wanted[name.removeprefix("again.")]
        kind, form = ("iu", "an integer") if name in whole else ("f", "a real floating-point")
        # ml_dtypes' floats are of kind V.
        if array.shape != shape or (array.dtype.kind not in kind and array.dtype.kind != "V"):
            expected = f"expected {form} array {list(shape)}"
            return f"{name} is {array.dtype.name}{list(array.shape)}, {expected}"
    if "experts" in outputs and case.spec is not None:
        ids = outputs["experts"]
        outside = (ids < -1) | (ids >= case.spec.router.num_choices)
        if outside.any():
            return (
                f"experts hold {ids[outside][0]}, expected -1 to {case.spec.router.num_choices - 1}"
            )
    return None
