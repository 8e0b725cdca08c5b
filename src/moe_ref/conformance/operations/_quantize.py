"""`quantize`: an array in blocks that share a scale."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._reduce import halves
from moe_ref.conformance.operations._returned import Unusable, unpacked

_NAMES = ("codes", "scales", "values")
_EXPECTED = "codes and scales, or these and values"
# Arrays of values: what is called, and what is called after it.
_VALUES = ("x", "later")


def block_axis(case: Case) -> int:
    """Along which axis the blocks of a case lie, counted from the last."""
    return int(case.arrays["axis"])


def block_length(case: Case) -> int:
    """How many values of a case share a scale."""
    return int(case.arrays["block"])


def _results(result: Any, arrays, of) -> dict[str, Any]:
    if hasattr(result, "elements"):  # a `moe_ref.mx.Quantized`, or what is named like one
        result = (result.elements, result.scales)
    if not isinstance(result, dict):
        several = unpacked(result, _EXPECTED, least=2, most=len(_NAMES))
        result = dict(zip(_NAMES, several, strict=False))
    found = dict(result)
    missing = [name for name in ("codes", "scales") if found.get(name) is None]
    if missing:
        raise Unusable(f"it returned no {' and no '.join(missing)}, expected {_EXPECTED}")
    return found | {name: _bits(of.take(of.finish(found[name]))) for name in ("codes", "scales")}


def _bits(array: np.ndarray) -> np.ndarray:
    """Codes in a narrow dtype as whole numbers; whole numbers as they are."""
    narrow = array.dtype.kind == "V" and array.dtype.fields is None
    if array.dtype.itemsize == 1 and (narrow or array.dtype.kind in "fi"):
        return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)
    return array


def _form(case: Case) -> dict[str, Form]:
    shape, axis = case.arrays["x"].shape, block_axis(case)
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block_length(case))
    return {
        "codes": Form(shape, "integer", low=0, high=256),
        "scales": Form(tuple(blocks), "integer", low=0, high=256),
        "values": Form(shape),
    }


def _sizes(case: Case) -> dict[str, int]:
    x, axis = case.arrays["x"], block_axis(case)
    others = [size for a, size in enumerate(x.shape) if a != axis % x.ndim]
    return {"rows": math.prod(others), "k": x.shape[axis]}


def _declared(case: Case, kernel: Any) -> Case | None:
    """The case with the blocked axis where the kernel has it, and blocks of its length."""
    x = case.arrays["x"]
    if kernel.axis < -x.ndim:
        return None
    moved = {
        name: np.ascontiguousarray(np.moveaxis(case.arrays[name], block_axis(case), kernel.axis))
        for name in _VALUES
        if case.has(name)
    }
    axis, block = np.array(kernel.axis, np.int32), np.array(kernel.block, np.int32)
    return case.replace(**moved, axis=axis, block=block)


def _fit(case: Case, multiple_of: dict[str, int]) -> Case:
    """Round the blocked axis and the rows up, with more of the same data."""
    axis = block_axis(case)
    fitted = {n: _rounded(case.arrays[n], axis, multiple_of) for n in _VALUES if case.has(n)}
    return case.replace(**fitted)


def _rounded(x: np.ndarray, axis: int, multiple_of: dict[str, int]) -> np.ndarray:
    if x.size == 0:
        return x
    x = _longer(x, axis, multiple_of.get("k", 1))
    others = [a for a in range(-x.ndim, 0) if a != axis]
    if others:
        rest = math.prod(x.shape[a] for a in others[1:])
        rows = multiple_of.get("rows", 1)
        x = _longer(x, others[0], rows // math.gcd(rows, rest))
    return x


def _longer(x: np.ndarray, axis: int, unit: int) -> np.ndarray:
    size = -(-x.shape[axis] // unit) * unit
    return x if size == x.shape[axis] else np.take(x, range(size), axis=axis, mode="wrap")


def _smaller(case: Case) -> Iterator[Case]:
    """Fewer rows, fewer blocks, a shorter block; then zeros in place of what does not matter."""
    for name in _VALUES:
        if case.has(name):
            for x in _reduced(case.arrays[name], block_axis(case), block_length(case)):
                yield case.replace(**{name: x})


def _reduced(x: np.ndarray, axis: int, block: int) -> Iterator[np.ndarray]:
    for other in range(-x.ndim, 0):
        if other != axis:
            for keep in halves(x.shape[other]):
                if keep:
                    yield np.take(x, keep, axis=other)
    length = x.shape[axis]
    for keep in halves(-(-length // block)):
        kept = [i for b in keep for i in range(b * block, min((b + 1) * block, length))]
        if kept:
            yield np.take(x, kept, axis=axis)
    if length <= block:
        for keep in halves(length):
            if keep:
                yield np.take(x, keep, axis=axis)
    used = np.flatnonzero(x)
    for keep in halves(len(used)):
        fewer = np.zeros_like(x)
        fewer.flat[used[keep]] = x.flat[used[keep]]
        yield fewer


QUANTIZE = Operation(
    name="quantize",
    signature=(
        "f(x) -> (codes, scales) or (codes, scales, values), an object with elements and scales, "
        "or a dict of these names: x [..., k] in high precision, in blocks of 32 along the last "
        "axis, E4M3 under rceil, or as `mx`, `axis` and `block` declare; codes of x's shape, one "
        "a value also where they have less than 8 bits, as whole numbers or in a narrow dtype; "
        "scales in plain layout, one E8M0 byte a block; values, what the kernel reads its codes "
        "and scales as"
    ),
    gradient="none: codes are whole numbers",
    arguments=lambda arrays, spec, of: ((arrays["x"],), {}),
    results=_results,
    form=_form,
    main="codes",
    differentiable=(),
    sizes=_sizes,
    smaller=_smaller,
    declared=_declared,
    fit=_fit,
)
