"""How a kernel writes its operands in blocks that share a scale, as data."""

import dataclasses
import typing
from typing import Literal

from moe_ref._errors import require_choice, require_types

MXFormat = Literal["mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_e2m1", "mxint8"]
MXRule = Literal["floor", "rceil", "ceil", "even", "rceil_real"]
NonFinite = Literal["poison", "te"]
WeightGradient = Literal["high_precision_source", "requantize", "high_precision_matmul"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MXSpec:
    """The choices of a kernel that quantises to MX blocks of 32, each of them right in its way.

    Args:
        format: of the elements; see `moe_ref.mx.formats`.
        rule: from the largest magnitude of a block to its scale; see `moe_ref.mx.quantize`.
        nonfinite: what NaN and Inf do to their block; see there too.
        wgrad: how the gradient of a weight gets its operands; see `moe_ref.mx.grouped_matmul_mx`.

    Raises:
        ValueError: a name that does not exist, with those that do.
    """

    format: MXFormat = "mxfp8_e4m3"
    rule: MXRule = "rceil"
    nonfinite: NonFinite = "poison"
    wgrad: WeightGradient = "high_precision_source"

    def __post_init__(self):
        require_types(self)


def mx_spec(given: MXSpec | str | None, argument: str) -> MXSpec | None:
    """The choices; a format's name stands for the defaults with it.

    Raises:
        ValueError: no such format.
    """
    if given is None or isinstance(given, MXSpec):
        return given
    require_choice(given, argument, typing.get_args(MXFormat))
    return MXSpec(format=given)  # pyright: ignore[reportArgumentType]
