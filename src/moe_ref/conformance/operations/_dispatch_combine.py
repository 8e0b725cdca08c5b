"""`dispatch_combine`: send tokens to the ranks of their experts, and their results back."""

from collections.abc import Iterator
from typing import Any

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._reduce import halves

_PER_TOKEN = ("x", "experts", "weights", "cotangent")


def _arguments(arrays, spec, of):
    return tuple(arrays[name] for name in ("x", "experts", "weights", "scale")), {}


def _results(result: Any, arrays, of) -> dict[str, Any]:
    return dict(result) if isinstance(result, dict) else {"y": result}


def _form(case: Case) -> dict[str, Form]:
    ranks, tokens, d = case.arrays["x"].shape
    k, experts = case.arrays["experts"].shape[2], len(case.arrays["scale"])
    return {
        "y": Form((ranks, tokens, d)),
        "rows_sent": Form((ranks, ranks), "integer", low=0),
        "copies_sent": Form((ranks, ranks), "integer", low=0),
        "grad.x": Form((ranks, tokens, d)),
        "grad.weights": Form((ranks, tokens, k)),
        "grad.scale": Form((experts,)),
    }


def _sizes(case: Case) -> dict[str, int]:
    ranks, tokens, d = case.arrays["x"].shape
    k, experts = case.arrays["experts"].shape[2], len(case.arrays["scale"])
    return {"ranks": ranks, "tokens": tokens, "d_model": d, "experts": experts, "k": k}


def _smaller(case: Case) -> Iterator[Case]:
    """Fewer tokens on every rank, narrower tokens."""
    for keep in halves(case.arrays["x"].shape[1]):
        yield case.replace(**{n: case.arrays[n][:, keep] for n in _PER_TOKEN if case.has(n)})
    for keep in halves(case.arrays["x"].shape[2]):
        if keep:
            wide = [name for name in ("x", "cotangent") if case.has(name)]
            yield case.replace(**{n: case.arrays[n][:, :, keep] for n in wide})


DISPATCH_COMBINE = Operation(
    name="dispatch_combine",
    signature=(
        "f(x [ranks, tokens, d], experts [ranks, tokens, k], weights [ranks, tokens, k], scale "
        "[experts], float32 at least) -> y [ranks, tokens, d], or a dict that may add rows_sent "
        "[source, destination], a token once for each destination, or copies_sent, once for each "
        "slot, both with what stays on a rank; expert e lives on rank e // (experts / ranks) and "
        "multiplies what it gets with scale[e]; -1 is an empty slot, whose weight may be anything, "
        "and an expert may repeat in a token"
    ),
    gradient="vjp(x, experts, weights, scale, cotangent) -> (dx, dweights, dscale)",
    arguments=_arguments,
    results=_results,
    form=_form,
    main="y",
    differentiable=("x", "weights", "scale"),
    sizes=_sizes,
    smaller=_smaller,
)
