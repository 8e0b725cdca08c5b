"""One input of one operation, and how to write it down."""

import dataclasses
from typing import Any, Literal

import numpy as np

from moe_ref.spec import MXSpec, Numerics

_PRINTABLE = 160

Manner = Literal["alone", "together", "reused", "watched", "transposed", "spaced", "expanded"]
# What a reader of a failing input has to know beside its numbers.
_MANNERS: dict[str, str] = {
    "together": "Call it on other arrays, of these or other shapes, before a result is read.",
    "reused": "Call `unpermute` a second time, on other rows and weights.",
    "watched": "Look at the arrays after the call.",
    "transposed": "Give every matrix as the transposed view of its transpose.",
    "spaced": "Give every array as every other element of a larger one.",
    "expanded": "Give the cotangent as one number, expanded: with strides of 0.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Arrays an operation is called with.

    Attributes:
        label: what the case is about, in a few words.
        arrays: NumPy arrays by argument name; `cotangent` is the one of the result. A `layer` is
            a nested dict, as `MoE.from_arrays` takes it.
        spec: the `LayerSpec`, where the operation reads one.
        numerics: what the kernel declares for this dtype; None: as moe_ref's own executions.
        mx: the MX format and rules that the kernel declares; None: those of `MXSpec()`.
        once: tried in the first of a kernel's dtypes only, since all depend on it in the same way.
        manner: how the kernel is called. `alone`: on dense arrays, and results are read before
            anything else happens. `together`: the related inputs of the check are called, too,
            before any result is read. `reused`: what was returned for it serves the related inputs.
            `watched`: the arrays given must be the same after the call. `transposed`: matrices lie
            in memory column by column. `spaced`: other numbers lie between those of an array.
            `expanded`: an array of one number throughout is that number with strides of 0.
    """

    label: str
    arrays: dict[str, Any]
    spec: Any = None
    numerics: Numerics | None = None
    mx: MXSpec | None = None
    once: bool = False
    manner: Manner = "alone"

    def replace(self, **arrays: Any) -> "Case":
        """A copy with some arrays changed."""
        return dataclasses.replace(self, arrays={**self.arrays, **arrays})

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return self.arrays.get(name) is not None

    @property
    def size(self) -> int:
        """Number of elements in all arrays."""
        return sum(array.size for array in leaves(self.arrays).values())

    @property
    def dtype(self) -> Any:
        """Name of the dtype of the hidden states, or of the logits where there are none."""
        return self.arrays["x" if "x" in self.arrays else "logits"].dtype.name

    def as_python(self) -> str:
        """Python that rebuilds the arrays, to paste into a bug report."""
        lines = ["import numpy as np"]
        if any(a.dtype.name == "bfloat16" for a in leaves(self.arrays).values()):
            lines.append("from ml_dtypes import bfloat16")
        if self.spec is not None:
            lines.append("from moe_ref.spec import CapacitySpec, ExpertSpec, LayerSpec, RouterSpec")
            lines.append(f"spec = {self.spec!r}")
        if self.mx is not None:
            lines.append(f"# declared: {self.mx!r}")
        if "layer" in self.arrays:
            lines.append("from moe_ref.layers import MoE")
        for name, array in self.arrays.items():
            if name == "layer":
                lines.append(f"layer = MoE.from_arrays(spec, {_literal_dict(array)})")
            elif array is not None:
                lines.append(f"{name} = {_literal(array)}")
        if self.manner in _MANNERS:
            lines.append(f"# {_MANNERS[self.manner]}")
        if any(array.size > _PRINTABLE for array in leaves(self.arrays).values()):
            lines.append("# np.empty stands for arrays too large to print: save the inputs.")
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


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Undo `leaves`: dotted names become nested dicts."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def _literal(array: np.ndarray) -> str:
    dtype = "bfloat16" if array.dtype.name == "bfloat16" else f"np.{array.dtype.name}"
    if array.dtype == bool:
        dtype = "bool"
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    if array.size > _PRINTABLE:
        return f"np.empty({array.shape}, {dtype})"
    if array.dtype.kind in "iub":
        return f"np.array({array.tolist()}, {dtype})"
    width = 8 * array.dtype.itemsize
    bits = np.ascontiguousarray(array).view(f"uint{width}").reshape(array.shape)
    if (bits[array != array] != np.array(np.nan, array.dtype).view(bits.dtype)).any():
        return f"np.array({bits.tolist()}, np.uint{width}).view({dtype})"
    # The shortest decimals that give these numbers back in their own dtype.
    short = np.array([float(str(number)) for number in array.reshape(-1)])
    text = repr(short.reshape(array.shape).tolist())
    for word in ("nan", "inf"):
        text = text.replace(word, f"np.{word}")
    return f"np.array({text}, {dtype})"


def _literal_dict(arrays: dict[str, Any]) -> str:
    items = (
        f'"{name}": {_literal_dict(value) if isinstance(value, dict) else _literal(value)}'
        for name, value in arrays.items()
        if value is not None
    )
    return "{" + ", ".join(items) + "}"
