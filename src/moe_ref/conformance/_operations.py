"""How an implementation of each operation is called. This runs beside the kernel."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moe_ref.conformance._case import Case, leaves
from moe_ref.layers import MoE

OPERATIONS = {
    "grouped_matmul": "f(x [rows, k], w [experts, k, n], group_sizes [experts]) -> [rows, n]",
    "route": "f(logits [tokens, experts], spec, bias=, mask=) -> (experts, weights) or Routing",
    "layer": "f(layer, x [tokens, d_model], mask=) -> y, or (y, aux) with aux.routing",
}


class Refused(Exception):
    """The implementation said, with a clear error, that it does not take this input."""


def apply_layer(layer: MoE, x: Any, mask: Any = None, *, execution: Any = None) -> Any:
    """Call a moe_ref layer as the operation `layer` does."""
    return layer(x, mask=mask, execution=execution)


def value(op: str, function: Callable[..., Any], case: Case) -> dict[str, np.ndarray]:
    """Call the implementation and bring its results back.

    Raises:
        Refused: it raised TypeError, ValueError or NotImplementedError.
    """
    with _x64(case):
        results = _guard(lambda: _call(op, function, case, _to_jax(case.arrays)))
        return {name: np.asarray(result) for name, result in results.items()}


def twice(op: str, function: Callable[..., Any], case: Case) -> dict[str, np.ndarray]:
    """Call the implementation twice on the same input; the second results are `again.*`."""
    first, second = value(op, function, case), value(op, function, case)
    return first | {f"again.{name}": result for name, result in second.items()}


def vjp(op: str, function: Callable[..., Any], case: Case) -> dict[str, np.ndarray]:
    """Call the implementation and pull `cotangent` back to every floating-point input.

    Returns:
        The results, and `grad.NAME` for every differentiable input.

    Raises:
        Refused: it cannot be differentiated.
    """
    with _x64(case):
        arrays = _to_jax({k: v for k, v in case.arrays.items() if k != "cotangent"})
        flat = leaves(arrays)
        moving = {k: v for k, v in flat.items() if jnp.issubdtype(v.dtype, jnp.floating)}

        def of_moving(values):
            return _call(op, function, case, _nest(flat | values))

        def run():
            results, pull = jax.vjp(of_moving, moving)
            main = "weights" if op == "route" else "y"
            cotangents = {name: _zero_cotangent(result) for name, result in results.items()}
            cotangents[main] = jnp.asarray(case.arrays["cotangent"]).astype(results[main].dtype)
            return results, pull(cotangents)[0]

        results, gradients = _guard(run)
        back = {name: np.asarray(result) for name, result in results.items()}
        return back | {f"grad.{name}": np.asarray(g) for name, g in gradients.items()}


def _call(op: str, function: Callable[..., Any], case: Case, arrays: dict[str, Any]):
    if op == "grouped_matmul":
        return {"y": function(arrays["x"], arrays["w"], arrays["group_sizes"])}
    options = {k: arrays[k] for k in ("bias", "mask") if arrays.get(k) is not None}
    assert case.spec is not None
    if op == "route":
        result = function(arrays["logits"], case.spec.router, **options)
        experts, weights = (
            (result.experts, result.weights) if hasattr(result, "experts") else result[:2]
        )
        return {"experts": experts, "weights": weights}
    result = function(MoE.from_arrays(case.spec, arrays["layer"]), arrays["x"], **options)
    if not isinstance(result, tuple):
        return {"y": result}
    y, aux = result[:2]
    routing = getattr(aux, "routing", None)
    return (
        {"y": y}
        if routing is None
        else {
            "y": y,
            "experts": routing.experts,
            "weights": routing.weights,
            "logits": routing.logits,
        }
    )


def _guard(call: Callable[[], Any]) -> Any:
    try:
        return jax.block_until_ready(call())
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Refused(reason[:300]) from None


def _x64(case: Case):
    """Enable 64-bit types only for inputs that have them: kernels may depend on the default."""
    wide = any(a.dtype.itemsize == 8 for a in leaves(case.arrays).values())
    return jax.enable_x64(wide)


def _to_jax(arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _to_jax(value)
        if isinstance(value, dict)
        else value
        if value is None
        else jnp.asarray(value)
        for name, value in arrays.items()
    }


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def _zero_cotangent(result: Any) -> Any:
    if jnp.issubdtype(result.dtype, jnp.floating):
        return jnp.zeros(result.shape, result.dtype)
    return np.zeros(result.shape, jax.dtypes.float0)
