"""Read parameters from any nested mapping or object with the layer's attributes, leaf by leaf.

Nothing is converted before it is used: an expert's matrices become float64 when its rows are
computed and are forgotten after, so a layer much larger than memory can be judged.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._formats import Format
from moe_ref.oracle._value import Value, given


@dataclasses.dataclass(frozen=True)
class FeedForward:
    """The parameters of one feed-forward network: an expert's or the shared one's.

    Args:
        w_in: [d_in, columns], gate columns first.
        w_out: [d_hidden, d_in].
        b_in: [columns] or None.
        b_out: [d_in] or None.
    """

    w_in: Value
    w_out: Value
    b_in: Value | None
    b_out: Value | None


def leaf(record: Any, name: str) -> Any:
    """`record[name]` or `record.name`; None where there is none."""
    if record is None:
        return None
    if isinstance(record, Mapping):
        return record.get(name)
    return getattr(record, name, None)


def needed(record: Any, name: str, where: str) -> Any:
    """The same, for a parameter the spec calls for.

    Raises:
        ValueError: it is absent.
    """
    found = leaf(record, name)
    require(found is not None, f"{where}.{name}", "an array: the spec calls for it", None)
    return found


def floats(array: Any) -> np.ndarray:
    """As NumPy float64, from NumPy, JAX or whatever NumPy understands."""
    return np.asarray(array).astype(np.float64)


def read(array: Any, format: Format, shape: tuple[int, ...], name: str) -> Value:
    """A parameter as exactly known numbers.

    Raises:
        ValueError: another shape.
    """
    values = floats(array)
    require(values.shape == shape, name, f"of shape {shape}", f"shape {values.shape}")
    return given(values, format)


def feed_forward(
    record: Any, index: int | None, widths: tuple[int, int, int], bias: bool, format: Format
) -> FeedForward:
    """The parameters of expert `index`, or of a record without a leading axis of experts.

    Args:
        record: has `w_in`, `w_out` and, with `bias`, `b_in` and `b_out`.
        index: of the expert, or None.
        widths: d_in, columns, d_hidden.
        bias: whether there are biases.
        format: of the parameters.
    """
    d_in, columns, d_hidden = widths
    where = "shared" if index is None else "experts"

    def part(name, shape):
        array = needed(record, name, where)
        return read(array if index is None else array[index], format, shape, f"{where}.{name}")

    return FeedForward(
        w_in=part("w_in", (d_in, columns)),
        w_out=part("w_out", (d_hidden, d_in)),
        b_in=part("b_in", (columns,)) if bias else None,
        b_out=part("b_out", (d_in,)) if bias else None,
    )
