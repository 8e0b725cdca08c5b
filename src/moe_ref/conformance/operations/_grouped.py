"""`grouped_matmul`: consecutive groups of rows, each with its own matrix."""

from collections.abc import Iterator

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance.operations._operation import Form, Operation
from moe_ref.conformance.operations._reduce import halves


def _form(case: Case) -> dict[str, Form]:
    rows, k = case.arrays["x"].shape
    experts, _, n = case.arrays["w"].shape
    shapes = {"y": (rows, n), "grad.x": (rows, k), "grad.w": (experts, k, n)}
    return {name: Form(shape) for name, shape in shapes.items()}


def _sizes(case: Case) -> dict[str, int]:
    x, w = case.arrays["x"], case.arrays["w"]
    return {"rows": len(x), "experts": len(w), "k": w.shape[1], "n": w.shape[2]}


def _fit(case: Case, multiple_of: dict[str, int]) -> Case | None:
    """Round k, n and every group up, with more of the same data; None: a size overflows."""
    arrays = dict(case.arrays)
    x, w, sizes = (arrays[name] for name in ("x", "w", "group_sizes"))
    k, n = (
        _up(size, multiple_of.get(name, 1)) for size, name in zip(w.shape[1:], "kn", strict=True)
    )
    w = np.take(np.take(w, range(k), axis=1, mode="wrap"), range(n), axis=2, mode="wrap")
    counts, unit = sizes.astype(np.int64), multiple_of.get("rows", 1)
    larger = _up(counts, unit)
    if larger.max(initial=0) > np.iinfo(sizes.dtype).max:
        return None
    ends = np.cumsum(counts)
    rows = [
        ends[e] - counts[e] + i % counts[e] for e in range(len(counts)) for i in range(larger[e])
    ]
    tail = len(x) - int(counts.sum())
    rows += [int(counts.sum()) + i % tail for i in range(_up(tail, unit) if tail else 0)]
    rows = np.asarray(rows, np.int64)
    arrays |= {"w": w, "group_sizes": larger.astype(sizes.dtype)}
    arrays["x"] = np.take(x[rows], range(k), axis=1, mode="wrap")
    if "cotangent" in arrays:
        arrays["cotangent"] = np.take(arrays["cotangent"][rows], range(n), axis=1, mode="wrap")
    return case.replace(**arrays)


def _up(size, unit: int):
    return -(-size // unit) * unit


def _smaller(case: Case) -> Iterator[Case]:
    x, w, sizes = (case.arrays[name] for name in ("x", "w", "group_sizes"))
    counts = sizes.astype(np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    for keep in halves(len(counts)):
        if len(keep):
            rows = [r for e in keep for r in range(ends[e] - counts[e], ends[e])]
            rows += list(range(total, len(x)))
            yield _pick(case, rows=rows, w=w[keep], group_sizes=sizes[keep])
    if len(x) > total:
        yield _pick(case, rows=list(range(total + (len(x) - total) // 2)))
    for e in np.argsort(-counts):
        if counts[e] > 0:
            for keep in halves(int(counts[e])):
                first = int(ends[e] - counts[e])
                kept = [first + i for i in keep]
                rows = [*range(first), *kept, *range(int(ends[e]), len(x))]
                fewer = sizes.copy()
                fewer[e] = len(keep)
                yield _pick(case, rows=rows, group_sizes=fewer)
    for axis, name in ((1, "k"), (2, "n")):
        for keep in halves(w.shape[axis]):
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


GROUPED_MATMUL = Operation(
    name="grouped_matmul",
    signature="f(x [rows, k], w [experts, k, n], group_sizes [experts]) -> [rows, n]",
    gradient="vjp(x, w, group_sizes, cotangent [rows, n]) -> (dx, dw)",
    arguments=lambda arrays, spec, of: ((arrays["x"], arrays["w"], arrays["group_sizes"]), {}),
    results=lambda result, arrays, of: {"y": result},
    form=_form,
    main="y",
    differentiable=("x", "w"),
    sizes=_sizes,
    smaller=_smaller,
    fit=_fit,
)
