r"""Dispatch and combine around experts that only multiply: $y_t = \sum_j w_{tj} s_{e_{tj}} x_t$.

What moves rows to their experts and back is judged with experts as simple as can be: each has one
factor. The order of the sum over a token's slots is not known.
"""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._arithmetic import multiply
from moe_ref.oracle._dot import dot, dot_rows
from moe_ref.oracle._formats import Formats, coarser, dtype_name
from moe_ref.oracle._params import floats
from moe_ref.oracle._permutation import ids_of, permutation
from moe_ref.oracle._sum import Sum
from moe_ref.oracle._value import Value, given, narrowed, put, settled, zeros
from moe_ref.spec import Numerics


@dataclasses.dataclass(frozen=True)
class CombineGradients:
    """Gradients of `combine`.

    Args:
        x: [tokens, d].
        weights: [tokens, k].
        scale: [experts].
    """

    x: Value
    weights: Value
    scale: Value


@dataclasses.dataclass(frozen=True)
class _Copies:
    """The kept slots, one after the other, and what each multiplies."""

    token: np.ndarray
    slot: np.ndarray
    expert: np.ndarray
    x: Value
    weight: Value
    scale: Value
    output: Value  # what the expert makes of its row


@np.errstate(all="ignore")
def combine(
    x: Any,
    experts: Any,
    weights: Any,
    scale: Any,
    *,
    capacity: int | None = None,
    numerics: Numerics | None = None,
) -> Value:
    r"""$y_t = \sum_j w_{tj}\, s_{e_{tj}}\, x_t$ over the slots that have a row.

    Args:
        x: [tokens, d]; its dtype gives the default `numerics`.
        experts: [tokens, k] ids in [0, experts), -1 for an empty slot; an id may repeat.
        weights: [tokens, k]; those of empty and dropped slots are not read.
        scale: [experts], the factor of each expert; those of idle experts are not read.
        capacity: rows an expert accepts, in token order; None drops nothing.
        numerics: of the kernel; `accumulate`, `expert_output`, `combine` and `output` count.

    Returns:
        [tokens, d]. Tokens without a row are exactly 0 with bound 0.

    Raises:
        ValueError: shapes or ids that contradict each other.

    Special cases:
        A NaN or Inf in a token, a weight or a factor reaches the tokens that use it, no other.

    Example:
        ```python
        from moe_ref import oracle

        y = oracle.combine([[1.0], [2.0]], [[0, 1], [1, -1]], [[0.5, 1.0], [1.0, 9.0]], [2.0, 4.0])
        assert y.value.tolist() == [[5.0], [8.0]]
        ```
    """
    formats, copies, shape = _read(x, experts, weights, scale, capacity, numerics)
    format = coarser(formats.combine, formats.accumulate)
    total = Sum((shape[0], shape[2]))
    total.add(copies.token, multiply(copies.output, copies.weight))
    return settled(narrowed(total.total(shape[1], format), formats.output, format))


@np.errstate(all="ignore")
def combine_vjp(
    x: Any,
    experts: Any,
    weights: Any,
    scale: Any,
    cotangent: Any,
    *,
    capacity: int | None = None,
    numerics: Numerics | None = None,
) -> CombineGradients:
    r"""Gradients of $\sum y \odot dy$.

    $$dx_t = \sum_j w_{tj} s_{e_{tj}} dy_t, \quad dw_{tj} = s_{e_{tj}} \langle dy_t, x_t\rangle,
    \quad ds_e = \sum_{(t,j):\, e_{tj} = e} w_{tj} \langle dy_t, x_t\rangle$$

    Args:
        x: as for `combine`.
        experts: as for `combine`.
        weights: as for `combine`.
        scale: as for `combine`.
        cotangent: $dy$, [tokens, d].
        capacity: as for `combine`.
        numerics: of the kernel; besides those of `combine`: `cotangent`, `gradient_sum`, `weights`
            and `gradient`.

    Returns:
        The gradients: exactly 0 for the weights of empty and dropped slots, for tokens without a
        row and for idle experts.

    Raises:
        ValueError: shapes or ids that contradict each other.

    Example:
        ```python
        from moe_ref import oracle

        g = oracle.combine_vjp([[3.0]], [[1, -1]], [[0.5, 9.0]], [2.0, 4.0], [[1.0]])
        assert g.x.value.tolist() == [[2.0]] and g.weights.value.tolist() == [[12.0, 0.0]]
        assert g.scale.value.tolist() == [0.0, 1.5]
        ```
    """
    f, copies, (tokens, k, d) = _read(x, experts, weights, scale, capacity, numerics)
    dy = floats(cotangent)
    require(dy.shape == (tokens, d), "cotangent", f"of shape {(tokens, d)}", f"shape {dy.shape}")
    own = given(dy[copies.token], f.output)
    onto = narrowed(multiply(own, copies.weight, f.accumulate), f.cotangent, f.accumulate)
    format = coarser(f.gradient_sum, f.accumulate)
    part = narrowed(multiply(onto, copies.scale, f.accumulate), f.cotangent, f.accumulate)
    dx = Sum((tokens, d))
    dx.add(copies.token, narrowed(part, format, f.accumulate))
    dw, ds = zeros(tokens, k), zeros(len(floats(scale)))
    along = narrowed(dot_rows(own, copies.output, f), f.weights, f.accumulate)
    put(dw, (copies.token, copies.slot), along[:, 0])
    for expert in np.unique(copies.expert):
        rows = copies.expert == expert
        row, column = (a[rows].map(lambda part: part.reshape(1, -1)) for a in (onto, copies.x))
        put(ds, slice(expert, expert + 1), dot(row, column.transposed, f)[0])
    return CombineGradients(
        x=settled(narrowed(dx.total(k, format), f.gradient, format)),
        weights=settled(dw),
        scale=settled(narrowed(ds, f.gradient, f.accumulate)),
    )


def _read(
    x: Any, experts: Any, weights: Any, scale: Any, capacity: int | None, numerics: Numerics | None
) -> tuple[Formats, _Copies, tuple[int, int, int]]:
    """The kept slots and tokens, k, d."""
    formats = Formats(numerics or Numerics.of(dtype_name(x, "x")))  # pyright: ignore[reportArgumentType]
    values, factors, w = floats(x), floats(scale), floats(weights)
    require(values.ndim == 2, "x", "of shape [tokens, d]", f"shape {values.shape}")
    require(factors.ndim == 1, "scale", "of shape [experts]", f"shape {factors.shape}")
    ids = ids_of(experts, len(factors))
    tokens = len(values)
    require(len(ids) == tokens, "experts", f"of x's {tokens} tokens", f"shape {ids.shape}")
    require(w.shape == ids.shape, "weights", f"of shape {ids.shape}", f"shape {w.shape}")
    order = permutation(ids, len(factors), capacity=capacity)
    token, slot = order.tokens, order.slots
    expert = ids[token, slot]
    row, factor = given(values[token], formats.inputs), given(factors[expert], formats.inputs)
    factor = factor[:, None]
    output = multiply(row, factor, formats.accumulate)
    copies = _Copies(
        token=token,
        slot=slot,
        expert=expert,
        x=row,
        weight=given(w[token, slot], formats.inputs)[:, None],
        scale=factor,
        output=narrowed(output, formats.expert_output, formats.accumulate),
    )
    return formats, copies, (tokens, ids.shape[1], values.shape[1])
