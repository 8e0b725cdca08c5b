r"""Grouped matmul: consecutive groups of rows, each with its own matrix."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._dot import dot
from moe_ref.oracle._formats import Formats, dtype_name
from moe_ref.oracle._params import floats
from moe_ref.oracle._value import Value, given, narrowed, put, settled, zeros
from moe_ref.spec import Numerics


@dataclasses.dataclass(frozen=True)
class GroupedGradients:
    """Gradients of a grouped matmul.

    Args:
        x: [rows, k].
        w: [experts, k, n].
    """

    x: Value
    w: Value


@np.errstate(all="ignore")
def grouped_matmul(x: Any, w: Any, group_sizes: Any, *, numerics: Numerics | None = None) -> Value:
    r"""$z_r = x_r W_e$ for every row r of group e.

    Args:
        x: [rows, k]; its dtype gives the default `numerics`.
        w: [experts, k, n], read one expert at a time.
        group_sizes: [experts] integers, at least 0, whose sum is at most the number of rows.
        numerics: of the kernel; `accumulate` and `output` count.

    Returns:
        [rows, n]. Rows past the last group are exactly 0 with bound 0; what a kernel leaves there
        may be unspecified, and then they are not to be compared.

    Raises:
        ValueError: shapes or sizes that contradict each other.

    Special cases:
        A NaN in one group's rows or matrix reaches that group's rows only.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle

        z = oracle.grouped_matmul(np.ones((3, 2)), np.ones((2, 2, 1)), [1, 1])
        assert z.value[:, 0].tolist() == [2.0, 2.0, 0.0]
        ```
    """
    formats, values, groups = _read(x, w, group_sizes, numerics)
    result = zeros(values.shape[0], np.shape(w)[2])
    for expert, rows in groups:
        z = dot(given(values[rows], formats.inputs), _matrix(w, expert, formats), formats)
        put(result, rows, settled(narrowed(z, formats.output, formats.accumulate)))
    return result


@np.errstate(all="ignore")
def grouped_matmul_vjp(
    x: Any, w: Any, group_sizes: Any, cotangent: Any, *, numerics: Numerics | None = None
) -> GroupedGradients:
    r"""$dx_r = dz_r W_e^\top$ and $dW_e = \sum_{r \in e} x_r^\top dz_r$.

    Args:
        x: as for `grouped_matmul`.
        w: as for `grouped_matmul`.
        group_sizes: as for `grouped_matmul`.
        cotangent: [rows, n]; rows past the last group are not read.
        numerics: of the kernel; `accumulate`, `cotangent` and `gradient` count.

    Returns:
        The gradients. Rows past the last group and matrices of empty groups are exactly 0.

    Raises:
        ValueError: shapes or sizes that contradict each other.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle

        x, w = np.ones((3, 2)), np.ones((2, 2, 1))
        g = oracle.grouped_matmul_vjp(x, w, [3, 0], np.ones((3, 1)))
        assert g.w.value[:, 0, 0].tolist() == [3.0, 0.0] and not g.w.bound[1].any()
        ```
    """
    formats, values, groups = _read(x, w, group_sizes, numerics)
    dz = floats(cotangent)
    shape = (values.shape[0], np.shape(w)[2])
    require(dz.shape == shape, "cotangent", f"of shape {shape}", f"shape {dz.shape}")
    dx, dw = zeros(*values.shape), zeros(*np.shape(w))
    for expert, rows in groups:
        d = given(dz[rows], formats.output)
        d = narrowed(d, formats.cotangent, formats.accumulate)
        back = dot(d, _matrix(w, expert, formats).transposed, formats)
        own = dot(given(values[rows], formats.inputs).transposed, d, formats)
        put(dx, rows, settled(narrowed(back, formats.gradient, formats.accumulate)))
        put(dw, expert, settled(narrowed(own, formats.gradient, formats.accumulate)))
    return GroupedGradients(dx, dw)


def _read(x, w, group_sizes, numerics) -> tuple[Formats, np.ndarray, list[tuple[int, slice]]]:
    formats = Formats(numerics or Numerics.of(dtype_name(x, "x")))  # pyright: ignore[reportArgumentType]
    values, given_sizes = floats(x), np.asarray(group_sizes)
    shape = np.shape(w)
    require(
        given_sizes.dtype.kind in "iu" or given_sizes.size == 0,
        "group_sizes",
        "integers",
        given_sizes.dtype,
    )
    sizes = given_sizes.astype(np.int64)
    require(values.ndim == 2, "x", "of shape [rows, k]", f"shape {values.shape}")
    require(
        len(shape) == 3 and shape[1] == values.shape[1],
        "w",
        f"of shape [experts, k={values.shape[1]}, n]",
        f"shape {shape}",
    )
    require(
        sizes.shape == shape[:1] and bool((sizes >= 0).all()),
        "group_sizes",
        f"at least 0, of shape [experts={shape[0]}]",
        sizes,
    )
    rows = values.shape[0]
    require(sizes.sum() <= rows, "group_sizes", f"at most rows={rows} in sum", sizes.sum())
    ends = np.cumsum(sizes)
    groups = [
        (expert, slice(int(end - size), int(end)))
        for expert, (size, end) in enumerate(zip(sizes, ends, strict=True))
        if size
    ]
    return formats, values, groups


def _matrix(w, expert: int, formats: Formats) -> Value:
    return given(floats(w[expert]), formats.inputs)
