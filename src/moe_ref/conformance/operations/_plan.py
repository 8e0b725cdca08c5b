"""`plan`: sort the copies of tokens by expert, and bring results back."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._reduce import fewer_tokens
from moe_ref.conformance.operations._returned import (
    Unusable,
    described,
    require_array,
    unpacked,
)

_UNPERMUTE = "unpermute(rows, weights [tokens, k]) -> [tokens, d]"


def _arguments(arrays, spec, of):
    options = {} if "capacity" not in arrays else {"capacity": int(arrays["capacity"])}
    return (arrays["x"], arrays["experts"], len(arrays["scale"])), options


def _results(result: Any, arrays, of) -> dict[str, Any]:
    """Between there and back every expert multiplies its rows with a factor of its own.

    Rows that belong to no expert are multiplied with NaN: nothing may depend on them.
    """
    expected = f"(rows, group_sizes, unpermute), with {_UNPERMUTE}"
    rows, group_sizes, unpermute = unpacked(result, expected, least=3, most=3)
    require_array("rows", rows)
    require_array("group_sizes", group_sizes)
    if not callable(unpermute):
        raise Unusable(f"unpermute is {described(unpermute)}, expected {_UNPERMUTE}")
    scale, sizes, nan = arrays["scale"], group_sizes, float("nan")
    if "capacity" in arrays:
        # After an expert's rows come the unfilled ones up to the next expert's.
        experts = len(scale)
        if len(rows) % experts:
            raise ValueError(f"{len(rows)} rows are not the same number for {experts} experts")
        nobody = of.repeat(scale, group_sizes * 0, 1, nan)[0]
        scale = of.stack([factor for own in scale for factor in (own, nobody)])
        free = len(rows) // experts
        sizes = of.stack([count for filled in group_sizes for count in (filled, free - filled)])
    factor = of.repeat(scale, sizes, len(rows), nan)
    with np.errstate(invalid="ignore"):  # a row may hold Inf and meet that NaN
        multiplied = rows * factor[:, None]
    y = unpermute(multiplied, arrays["weights"])
    return {"rows": rows, "group_sizes": group_sizes, "y": y}


def _pull(vjp: Any, arrays, spec, cotangent, of):
    positional, named = _arguments(arrays, spec, of)
    return vjp(*positional, arrays["weights"], arrays["scale"], cotangent, **named)


def _form(case: Case) -> dict[str, Form]:
    tokens, d = case.arrays["x"].shape
    k = case.arrays["experts"].shape[1]
    return {
        "rows": Form((None, d)),
        "group_sizes": Form((len(case.arrays["scale"]),), "integer", low=0),
        "y": Form((tokens, d)),
        "grad.x": Form((tokens, d)),
        "grad.weights": Form((tokens, k)),
    }


def _sizes(case: Case) -> dict[str, int]:
    tokens, d = case.arrays["x"].shape
    k, experts = case.arrays["experts"].shape[1], len(case.arrays["scale"])
    return {"tokens": tokens, "d_model": d, "experts": experts, "k": k}


def _smaller(case: Case) -> Iterator[Case]:
    return fewer_tokens(case, "x", "experts", "weights", "cotangent")


PLAN = Operation(
    name="plan",
    signature=(
        "f(x [tokens, d], experts [tokens, k], num_experts) -> (rows [rows, d], group_sizes "
        f"[experts], unpermute), where {_UNPERMUTE} is the "
        "weighted sum of each token's rows; -1 is an empty slot, an expert may repeat in a token; "
        "rows past the last group, and weights of slots without a row, may hold anything. With "
        "capacity=C an expert takes C rows at most, the first in token-major order (all choices "
        "of token 0, then of token 1, ...), and those of expert e begin at e * rows / experts"
    ),
    gradient=(
        "vjp(x, experts, num_experts, weights, scale [experts], cotangent, capacity=) -> (dx, "
        "dweights) of unpermute(scale * rows, weights)"
    ),
    arguments=_arguments,
    results=_results,
    pull=_pull,
    form=_form,
    main="y",
    differentiable=("x", "weights"),
    fixed=("scale",),
    sizes=_sizes,
    smaller=_smaller,
)
