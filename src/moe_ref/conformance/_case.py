"""One input of one operation, and how to write it down."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref.spec import LayerSpec

_PRINTABLE = 160


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Arrays an operation is called with.

    Attributes:
        label: what the case is about, in a few words.
        arrays: NumPy arrays by argument name; `cotangent` is the one of the result. A `layer` is
            a nested dict, as `MoE.from_arrays` takes it.
        spec: the layer, for `route` and `layer`.
    """

    label: str
    arrays: dict[str, Any]
    spec: LayerSpec | None = None

    def replace(self, **arrays: Any) -> "Case":
        """A copy with some arrays changed."""
        return dataclasses.replace(self, arrays={**self.arrays, **arrays})

    @property
    def size(self) -> int:
        """Number of elements in all arrays."""
        return sum(array.size for array in leaves(self.arrays).values())

    @property
    def dtype(self) -> Any:
        """Name of the dtype of the first floating-point array."""
        floating = (a.dtype for a in leaves(self.arrays).values() if a.dtype.kind not in "iub")
        return next(floating).name

    def as_python(self) -> str:
        """Python that rebuilds the arrays, to paste into a bug report; a summary if large."""
        lines = ["import numpy as np"]
        if any(a.dtype.name == "bfloat16" for a in leaves(self.arrays).values()):
            lines.append("from ml_dtypes import bfloat16")
        if self.spec is not None:
            lines += ["from moe_ref.spec import *", f"spec = {self.spec!r}"]
        for name, array in leaves(self.arrays).items():
            lines.append(f"{name.replace('.', '_')} = {_literal(array)}")
        return "\n".join(lines)


def leaves(arrays: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to dotted names; None is left out."""
    flat: dict[str, Any] = {}
    for name, value in arrays.items():
        if isinstance(value, dict):
            flat |= leaves(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat


def _literal(array: np.ndarray) -> str:
    dtype = "bfloat16" if array.dtype.name == "bfloat16" else f"np.{array.dtype.name}"
    if array.dtype == bool:
        dtype = "bool"
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    if array.size > _PRINTABLE:
        return f"...  # {dtype} of shape {array.shape}: see the saved input"
    if array.dtype.kind in "iub":
        return f"np.array({array.tolist()}, {dtype})"
    # The shortest decimals that give these numbers back in their own dtype.
    short = np.array([float(str(number)) for number in array.reshape(-1)])
    text = repr(short.reshape(array.shape).tolist())
    for word in ("nan", "inf"):
        text = text.replace(word, f"np.{word}")
    return f"np.array({text}, {dtype})"
