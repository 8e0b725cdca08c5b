"""What a case should give, for those who look into a golden vector."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance.suite import _grouped_mx_cases as mx
from moe_ref.conformance.suite._quantize_judge import truth

Truth = dict[str, Any]


def expected(check: Check, case: Case) -> dict[str, np.ndarray]:
    """Values and bounds, as far as the oracle has them without a kernel's own choices.

    Args:
        check: says which results are looked at.
        case: the input.

    Returns:
        `NAME.value` and `NAME.bound` in float64 of a result with a bound, `NAME` of integers. They
        are for a reader: what decides is the judge of the check, who may ask for more or for less.
    """
    truth = _TRUTHS[check.op](case, check.method == "vjp") if check.op in _TRUTHS else {}
    found = {}
    for name, value in truth.items():
        if check.wants and name not in check.wants:
            continue
        if isinstance(value, oracle.Value):
            found |= {f"{name}.value": value.value, f"{name}.bound": value.bound}
        else:
            found[name] = value
    return found


def _grouped_matmul(case: Case, gradients: bool) -> Truth:
    x, w, sizes = (case.arrays[name] for name in ("x", "w", "group_sizes"))
    found: Truth = {"y": oracle.grouped_matmul(x, w, sizes, numerics=case.numerics)}
    if gradients:
        dy = case.arrays["cotangent"]
        pulled = oracle.grouped_matmul_vjp(x, w, sizes, dy, numerics=case.numerics)
        found |= {"grad.x": pulled.x, "grad.w": pulled.w}
    return found


def _grouped_matmul_mx(case: Case, gradients: bool) -> Truth:
    found: Truth = {"y": mx.truth_of(case)}
    if gradients:
        pulled = mx.gradients_of(case)
        found |= {"grad.x": pulled.x, "grad.w": pulled.w}
    return found


def _route(case: Case, gradients: bool) -> Truth:
    assert case.spec is not None
    logits, router = case.arrays["logits"], case.spec.router
    options = {name: case.arrays.get(name) for name in ("bias", "mask")}
    options["numerics"] = case.numerics
    routing = oracle.route(logits, router, **options)
    found: Truth = {"experts": routing.experts, "weights": routing.weights}
    if gradients:
        cotangent = case.arrays["cotangent"]
        pulled = oracle.route_vjp(logits, router, cotangent, experts=routing.experts, **options)
        found["grad.logits"] = pulled
    return found


def _losses(case: Case, gradients: bool) -> Truth:
    assert case.spec is not None
    logits, experts, router = case.arrays["logits"], case.arrays["experts"], case.spec.router
    options = {"mask": case.arrays.get("mask"), "numerics": case.numerics}
    result = oracle.losses(logits, experts, router, **options)
    found: Truth = {"losses": result.losses, "load": result.load, "step": result.step}
    if gradients:
        cotangent = case.arrays["cotangent"]
        found["grad.logits"] = oracle.losses_vjp(logits, experts, router, cotangent, **options)
    return found


def _layer(case: Case, gradients: bool) -> Truth:
    assert case.spec is not None
    arrays = case.arrays
    options = {"mask": arrays.get("mask"), "numerics": case.numerics}
    result = oracle.layer(arrays["x"], arrays["layer"], case.spec, **options)
    return {"y": result.output, "experts": result.routing.experts}


def _quantize(case: Case, gradients: bool) -> Truth:
    result = truth(case)
    return {"codes": result.elements, "scales": result.scales}


_TRUTHS: dict[str, Callable[[Case, bool], Truth]] = {
    "grouped_matmul": _grouped_matmul,
    "grouped_matmul_mx": _grouped_matmul_mx,
    "route": _route,
    "losses": _losses,
    "layer": _layer,
    "quantize": _quantize,
}
