"""A program that computes grouped matmuls from golden vectors, and the vectors it is given."""

import numpy as np

from moe_ref import conformance
from moe_ref.conformance import _vectors

# Values, an optional check, a declared capability, integers, two calls, gradients.
FEW = ("GRP-03", "GRP-05", "GRP-09", "GRP-13", "GRP-15", "GRP-57", "GRP-58")
ALL = {check.id: check for check in conformance.checks()}


def write(folder, ids, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_vectors, "checks", lambda op: tuple(ALL[each] for each in ids))
        _vectors.write_vectors(folder)
    return folder


def grouped(tensors, prefix, vjp):
    """A grouped matmul as another program has it: from tensors to tensors."""
    x, w = (tensors[prefix + name].astype(np.float32) for name in ("x", "w"))
    out = {"y": np.zeros((len(x), w.shape[2]), np.float32)}
    if vjp:
        out |= {"grad.x": np.zeros_like(x), "grad.w": np.zeros_like(w)}
    start = 0
    for expert, size in enumerate(tensors[prefix + "group_sizes"].tolist()):
        rows = slice(start, start + size)
        out["y"][rows] = x[rows] @ w[expert]
        if vjp:
            dy = tensors[prefix + "cotangent"][rows].astype(np.float32)
            out["grad.x"][rows], out["grad.w"][expert] = dy @ w[expert].T, x[rows].T @ dy
        start += size
    return {f"{prefix}{k}": v.astype(tensors[prefix + "x"].dtype) for k, v in out.items()}
