r"""Grouped matmul on MX operands: the operands exact, the sums bounded."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require_choice
from moe_ref.oracle._formats import dtype_name
from moe_ref.oracle._grouped import GroupedGradients, grouped_matmul, grouped_matmul_vjp
from moe_ref.oracle._mx import dequantize, quantize
from moe_ref.oracle._value import Value
from moe_ref.spec import Numerics

_WGRAD = ("high_precision_source", "requantize", "high_precision_matmul")


def grouped_matmul_mx(
    x: Any,
    w: Any,
    group_sizes: Any,
    *,
    format: str = "mxfp8_e4m3",
    rule: str = "rceil",
    nonfinite: str = "poison",
    numerics: Numerics | None = None,
) -> Value:
    r"""$z_r = Q_k(x)_r\, Q_k(W_e)$, with $Q_k$ quantising along the contraction and back.

    Args:
        x: [rows, k] of float32, float16 or bfloat16.
        w: [experts, k, n].
        group_sizes: as for `grouped_matmul`.
        format: of both operands.
        rule: as for `quantize`.
        nonfinite: as for `quantize`.
        numerics: of the sum; float32 operands, float32 sums and the dtype of `x` out if None.

    Returns:
        [rows, n], with the bound of `grouped_matmul` on the dequantised operands; inf where one of
        them is beyond float32, in which a kernel may hold it as Inf.

    Raises:
        ValueError: names, shapes or sizes that do not fit.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle

        x, w = np.full((2, 32), 1.0625, np.float32), np.ones((1, 32, 1), np.float32)
        assert oracle.grouped_matmul_mx(x, w, [2]).value.tolist() == [[32.0], [32.0]]
        ```
    """
    declared = numerics or _declared(x)
    form = {"format": format, "rule": rule, "nonfinite": nonfinite}
    left, right = _there_and_back(x, -1, **form), _there_and_back(w, 1, **form)
    result = grouped_matmul(left, right, group_sizes, numerics=declared)
    of_right = _of_rows(_beyond(right, 1), group_sizes, len(left))
    return _unsaid(result, _beyond(left, 1)[:, None] | of_right)


def grouped_matmul_mx_vjp(
    x: Any,
    w: Any,
    group_sizes: Any,
    cotangent: Any,
    *,
    format: str = "mxfp8_e4m3",
    rule: str = "rceil",
    nonfinite: str = "poison",
    wgrad: str = "high_precision_source",
    numerics: Numerics | None = None,
) -> GroupedGradients:
    r"""$dx_r = Q_n(dz)_r\, Q_n(W_e)^\top$ and $dW_e = Q_t(x_e)^\top Q_t(dz_e)$.

    The blocks of $Q_t$ lie along the rows of each expert by themselves.

    Args:
        x: as for `grouped_matmul_mx`.
        w: as for `grouped_matmul_mx`.
        group_sizes: as for `grouped_matmul`.
        cotangent: [rows, n] of float32, float16 or bfloat16.
        format: of all operands.
        rule: as for `quantize`.
        nonfinite: as for `quantize`.
        wgrad: "high_precision_source"; "requantize", where $Q_k(x)$ and $Q_n(dz)$ stand for $x$
            and $dz$ in $dW$; or "high_precision_matmul", where $Q_t$ is the identity.
        numerics: of the sums, as for `grouped_matmul_mx`.

    Returns:
        The gradients.

    Raises:
        ValueError: names, shapes or sizes that do not fit.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle

        x, w = np.full((2, 32), 1.0625, np.float32), np.ones((1, 32, 1), np.float32)
        g = oracle.grouped_matmul_mx_vjp(x, w, [2], np.ones((2, 1), np.float32))
        assert g.w.value[0, 0, 0] == 2.0
        ```
    """
    require_choice(wgrad, "wgrad", _WGRAD)
    # Dequantised cotangents are float32 numbers, whatever the dtype of the result.
    declared = dataclasses.replace(numerics or _declared(x), output="float32")
    form = {"format": format, "rule": rule, "nonfinite": nonfinite}
    along_n = _there_and_back(cotangent, -1, **form)
    narrow = _there_and_back(w, -1, **form)
    # Of each call one gradient is wanted; the operand of the other is zero, which costs nothing.
    nothing = np.zeros(np.shape(x)), np.zeros(np.shape(w))
    dx = grouped_matmul_vjp(nothing[0], narrow, group_sizes, along_n, numerics=declared).x
    of_narrow = _of_rows(_beyond(narrow, 2), group_sizes, len(along_n))
    dx = _unsaid(dx, _beyond(along_n, 1)[:, None] | of_narrow)
    left, right = x, cotangent
    if wgrad == "requantize":
        left = _there_and_back(x, -1, **form).astype(np.float32)
        right = along_n.astype(np.float32)
    if wgrad != "high_precision_matmul":
        left, right = (_in_groups(a, group_sizes, form) for a in (left, right))
    dw = grouped_matmul_vjp(left, nothing[1], group_sizes, right, numerics=declared).w
    of_left, of_right = (_beyond_in_groups(a, group_sizes) for a in (left, right))
    return GroupedGradients(dx, _unsaid(dw, of_left[:, :, None] | of_right[:, None, :]))


def _there_and_back(a: Any, axis: int, format: str, rule: str, nonfinite: str) -> np.ndarray:
    q = quantize(a, format, axis=axis, rule=rule, nonfinite=nonfinite)
    return dequantize(q.elements, q.scales, format, axis=axis)


def _in_groups(a: Any, group_sizes: Any, form: dict[str, str]) -> np.ndarray:
    """Each group quantised along its own rows; NaN in rows of none, which are not to be read."""
    values = np.asarray(a)
    result, start = np.full(values.shape, np.nan), 0
    for size in np.asarray(group_sizes).tolist():
        if size:
            mine = slice(start, start + size)
            result[mine] = _there_and_back(values[mine], 0, **form)
        start += size
    return result


def _beyond(a: Any, axis: int) -> np.ndarray:
    """Where, along an axis, some number that was read is finite, but not in float32."""
    size = np.abs(np.asarray(a).astype(np.float64))
    beyond = np.isfinite(size) & (size > np.finfo(np.float32).max)
    return np.asarray(beyond.any(axis))


def _of_rows(of_experts: np.ndarray, group_sizes: Any, rows: int) -> np.ndarray:
    """What is so of each row's expert: [rows, columns]; False for rows of none."""
    result = np.zeros((rows, of_experts.shape[1]), bool)
    found = np.repeat(of_experts, np.asarray(group_sizes, np.int64), axis=0)
    result[: len(found)] = found
    return result


def _beyond_in_groups(a: Any, group_sizes: Any) -> np.ndarray:
    """The same along the rows of each group: [experts, columns]."""
    sizes = np.asarray(group_sizes, np.int64)
    ends = np.cumsum(sizes)
    result = np.zeros((len(sizes), np.shape(a)[1]), bool)
    for e, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        result[e] = _beyond(a[start:end], 0)
    return result


def _unsaid(result: Value, where: np.ndarray) -> Value:
    """The result, of which nothing is said in some places."""
    if not where.any():
        return result
    limits = {n: np.where(where, np.inf, getattr(result, n)) for n in ("bound", "worst")}
    return dataclasses.replace(result, **limits)


def _declared(x: Any) -> Numerics:
    name = dtype_name(x, "x")
    return Numerics(output=name, gradient=name)  # pyright: ignore[reportArgumentType]
