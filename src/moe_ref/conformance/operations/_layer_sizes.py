"""A layer's input with other sizes: smaller after a failure, larger for a kernel that needs it."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._reduce import fewer_tokens
from moe_ref.layers import MoE
from moe_ref.oracle._problem import problem
from moe_ref.spec import LayerSpec

# From an array, the size wanted along an axis, and that axis, to the array of that size.
_Resize = Callable[[np.ndarray, int, int], np.ndarray]
# Axes that a product sums over: numbers added there are smaller, so that sums stay as large.
_SUMMED = {"w_in": -2, "w_out": -2, "latent_in": -2, "latent_out": -2, "weight": -1}
_SUMMED["shared_gate"] = -1


def smaller(case: Case) -> Iterator[Case]:
    """Fewer tokens, fewer experts, a narrower hidden layer, narrower tokens: as the spec allows."""
    yield from fewer_tokens(case, "x", "mask", "cotangent")
    spec = case.spec
    sizes = {"num_experts": spec.router.num_experts, "d_hidden": spec.experts.d_hidden}
    sizes |= {"d_model": spec.d_model, "shared_d_hidden": spec.shared_d_hidden}
    for name, size in sizes.items():
        for fewer in {size // 2, size - 1} if size > 1 else ():
            try:
                narrower = spec.replace(**{name: fewer})
            except ValueError:
                continue
            if not (spec.router.zero_experts and name == "num_experts"):
                yield _resized(case, narrower, lambda name: _first)


def fit(case: Case, multiple_of: dict[str, int]) -> Case:
    """Round widths and the number of tokens up.

    What is added are numbers of the same array with random signs, so that zeros stay zeros and
    large numbers large. A token whose choice of experts is then left to rounding becomes another
    one.
    """
    d, hidden, rows = (multiple_of.get(name, 1) for name in ("d_model", "d_hidden", "tokens"))
    spec = case.spec
    wider = spec.replace(
        d_model=_up(spec.d_model, d),
        d_hidden=_up(spec.experts.d_hidden, hidden),
        shared_d_hidden=_up(spec.shared_d_hidden, hidden),
        **({"d_latent": _up(spec.d_latent, d)} if spec.d_latent else {}),
    )
    tokens = len(case.arrays["x"])
    more = np.arange(_up(tokens, rows)) % max(tokens, 1)
    names = ("x", "mask", "cotangent")
    case = case.replace(**{name: case.arrays[name][more] for name in names if case.has(name)})
    return case if wider == spec else _certain(_resized(case, wider, _extend))


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _first(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    return np.take(array, range(size), axis=axis)


def _extend(name: str) -> _Resize:
    def extend(array: np.ndarray, size: int, axis: int) -> np.ndarray:
        have = array.shape[axis]
        if size == have:
            return array
        # Not of the first one, which steers the router in some inputs.
        source = np.arange(size - have) % max(have - 1, 1) + (have > 1)
        added = np.take(array, source, axis=axis)
        factor = np.random.default_rng(size).choice([-1.0, 1.0], added.shape)
        if axis == _SUMMED.get(name, array.ndim) % array.ndim:
            factor *= (have / max(have, size - have)) ** 0.5
        added = (added.astype(np.float64) * factor).astype(array.dtype)
        return np.concatenate([array, added], axis=axis)

    return extend


def _resized(case: Case, spec: LayerSpec, by: Callable[[str], _Resize]) -> Case:
    """Every parameter in the sizes of `spec`, gate and up apart; tokens as wide as it says."""
    layer = eqx.filter_eval_shape(lambda: MoE(spec, key=jax.random.key(0)))
    like = jax.tree_util.tree_map(lambda leaf: leaf.shape, layer)

    def resize(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if spec.experts.gated and name in ("w_in", "b_in"):
            half = (*shape[:-1], shape[-1] // 2)
            parts = np.split(array, 2, axis=-1)
            return np.concatenate([_along_all(part, half, by(name)) for part in parts], axis=-1)
        return _along_all(array, shape, by(name))

    def every(arrays: dict[str, Any], like: Any) -> dict[str, Any]:
        return {
            name: every(value, getattr(like, name))
            if isinstance(value, dict)
            else resize(name, value, getattr(like, name))
            for name, value in arrays.items()
            if value is not None
        }

    arrays: dict[str, Any] = dict(case.arrays) | {"layer": every(case.arrays["layer"], like)}
    for name in ("x", "cotangent"):
        if name in arrays:
            arrays[name] = by(name)(arrays[name], spec.d_model, 1)
    return dataclasses.replace(case, arrays=arrays, spec=spec)


def _along_all(array: np.ndarray, shape: tuple[int, ...], resize: _Resize) -> np.ndarray:
    for axis, size in enumerate(shape):
        array = resize(array, size, axis)
    return array


@np.errstate(all="ignore")
def _certain(case: Case) -> Case:
    """Copies of the first token of a certain choice in place of those that rounding decides."""
    x = case.arrays["x"]
    unsure = problem(x, case.arrays["layer"], case.spec).routing.ambiguous
    finite = np.isfinite(x.astype(np.float64)).all(axis=1)
    if not (unsure & finite).any() or not (~unsure & finite).any():
        return case
    known = x[np.argmax(~unsure & finite)]
    return case.replace(x=np.where((unsure & finite)[:, None], known, x))
