"""Make a failing input small."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.layers import MoE
from moe_ref.spec import LayerSpec


def shrink(case: Case, fails: Callable[[Case], bool], *, seconds: float | int = 15) -> Case:
    """Greedily replace a failing input by a smaller one that fails too.

    Args:
        case: fails.
        fails: whether another input does.
        seconds: stop looking after this long.

    Returns:
        The smallest failing input found, `case` itself if nothing smaller fails.
    """
    deadline = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for smaller in _smaller(case):
            if time.monotonic() > deadline:
                break
            if fails(smaller):
                case, improved = smaller, True
                break
    return _simplify(case, fails, deadline)


def _smaller(case: Case) -> Iterator[Case]:
    if "group_sizes" in case.arrays:
        yield from _smaller_grouped(case)
    else:
        yield from _fewer_tokens(case)
        if "layer" in case.arrays:
            yield from _smaller_layers(case)


def _smaller_grouped(case: Case) -> Iterator[Case]:
    x, w, sizes = (case.arrays[name] for name in ("x", "w", "group_sizes"))
    counts = sizes.astype(np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    for keep in _halves(len(counts)):
        if len(keep):
            rows = [r for e in keep for r in range(ends[e] - counts[e], ends[e])]
            rows += list(range(total, len(x)))
            yield _pick(case, rows=rows, w=w[keep], group_sizes=sizes[keep])
    if len(x) > total:
        yield _pick(case, rows=list(range(total + (len(x) - total) // 2)))
    for e in np.argsort(-counts):
        if counts[e] > 0:
            for keep in _halves(int(counts[e])):
                first = int(ends[e] - counts[e])
                kept = [first + i for i in keep]
                rows = [*range(first), *kept, *range(int(ends[e]), len(x))]
                fewer = sizes.copy()
                fewer[e] = len(keep)
                yield _pick(case, rows=rows, group_sizes=fewer)
    for axis, name in ((1, "k"), (2, "n")):
        for keep in _halves(w.shape[axis]):
            if len(keep):
                yield _pick(case, **{name: keep})


def _pick(case: Case, *, rows=None, w=None, group_sizes=None, k=None, n=None) -> Case:
    arrays = dict(case.arrays)
    for name in ("x", "cotangent"):
        if rows is not None and name in arrays:
            arrays[name] = arrays[name][rows]
    if w is not None:
        arrays["w"] = w
    if group_sizes is not None:
        arrays["group_sizes"] = group_sizes
    if k is not None:
        arrays |= {"x": arrays["x"][:, k], "w": arrays["w"][:, k]}
    if n is not None:
        arrays["w"] = arrays["w"][:, :, n]
        if "cotangent" in arrays:
            arrays["cotangent"] = arrays["cotangent"][:, n]
    return case.replace(**arrays)


def _fewer_tokens(case: Case) -> Iterator[Case]:
    name = "logits" if "logits" in case.arrays else "x"
    for keep in _halves(len(case.arrays[name])):
        per_token = [n for n in (name, "mask", "cotangent") if case.arrays.get(n) is not None]
        yield case.replace(**{n: case.arrays[n][keep] for n in per_token})


def _smaller_layers(case: Case) -> Iterator[Case]:
    """Fewer experts, a narrower hidden layer, narrower tokens: what the spec allows."""
    assert case.spec is not None
    sizes = {"experts": case.spec.router.num_experts, "hidden": case.spec.experts.d_hidden}
    sizes |= {"model": case.spec.d_model, "shared": case.spec.shared_d_hidden}
    names = ("num_experts", "d_hidden", "d_model", "shared_d_hidden")
    for (kind, size), name in zip(sizes.items(), names, strict=True):
        for fewer in {size // 2, size - 1} if size > 1 else ():
            try:
                spec = case.spec.replace(**{name: fewer})
            except ValueError:
                continue
            if spec.router.zero_experts and kind == "experts":
                continue
            like = jax.tree_util.tree_map(
                lambda leaf: leaf.shape, eqx.filter_eval_shape(MoE, spec, key=jax.random.key(0))
            )
            yield _cut(case, spec, like)


def _cut(case: Case, spec: LayerSpec, like: Any) -> Case:
    """Keep the first entries along every axis of every parameter, gate and up apart."""

    def corner(array: np.ndarray, shape: tuple[int, ...], *, gated: bool = False) -> np.ndarray:
        if gated:
            half = shape[-1] // 2
            parts = np.split(array, 2, axis=-1)
            return np.concatenate([corner(part, (*shape[:-1], half)) for part in parts], axis=-1)
        return array[tuple(slice(n) for n in shape)]

    def cut(arrays: dict[str, Any], like: Any) -> dict[str, Any]:
        gated = spec.experts.gated
        return {
            name: cut(value, getattr(like, name))
            if isinstance(value, dict)
            else corner(value, getattr(like, name), gated=gated and name in ("w_in", "b_in"))
            for name, value in arrays.items()
            if value is not None
        }

    arrays: dict[str, Any] = dict(case.arrays) | {"layer": cut(case.arrays["layer"], like)}
    for name in ("x", "cotangent"):
        if name in arrays:
            arrays[name] = arrays[name][:, : spec.d_model]
    return dataclasses.replace(case, arrays=arrays, spec=spec)


def _halves(count: int) -> Iterator[list[int]]:
    """Subsets to try: both halves, then all but one."""
    everything = list(range(count))
    if count >= 2:
        yield everything[: count // 2]
        yield everything[count // 2 :]
    if 1 <= count <= 12:
        for i in everything:
            yield everything[:i] + everything[i + 1 :]


def _simplify(case: Case, fails: Callable[[Case], bool], deadline: float) -> Case:
    """Prefer numbers a person can read: small integers, then two digits."""
    for digits in (0, 2):
        if time.monotonic() > deadline:
            break
        rounded = {
            name: np.round(array.astype(np.float64), digits).astype(array.dtype)
            for name, array in case.arrays.items()
            if isinstance(array, np.ndarray) and array.dtype.kind not in "iub"
        }
        simple = case.replace(**rounded)
        if fails(simple):
            return simple
    return case
