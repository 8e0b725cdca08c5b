"""Quantisers that are right for ordinary arrays, and wrong for some blocks in some shapes."""

import math
from collections.abc import Callable

import numpy as np

from moe_ref.conformance.mutants import _quantize_elements as elements
from moe_ref.conformance.mutants import _quantize_scale as scale
from moe_ref.conformance.mutants import _quantize_special as special
from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation, wrong_ones
from moe_ref.conformance.mutants._quantize_kernel import Quantizer, quantizer

Shape = tuple[int, ...]


class _There(Quantizer):
    """Another quantiser for arrays of some shapes, or for the last blocks of a row.

    Args:
        place: where, one of `_WHERE`.
        other: the one that is wrong.
        axis: along which blocks lie.
    """

    def __init__(self, place: str, other: type[Quantizer], axis: int):
        self._place, self._other = place, other()
        self.mx = other.mx
        self.axis = self._other.axis = axis

    def value(self, x):
        right, wrong = super().value(x), self._other.value(x)
        # From here on, along the blocked axis, it is wrong.
        first = _WHERE[self._place][1](np.moveaxis(x, self.axis, -1).shape)
        starts = {"codes": first, "values": first, "scales": -(-first // self.block)}
        return {name: self._joined(right[name], wrong[name], at) for name, at in starts.items()}

    def _joined(self, right, wrong, start):
        right, wrong = (np.moveaxis(each, self.axis, -1) for each in (right, wrong))
        both = np.concatenate([right[..., :start], wrong[..., start:]], axis=-1)
        return np.moveaxis(both, -1, self.axis)


def _rows(shape: Shape) -> int:
    return math.prod(shape[:-1])


def _all_if(fits: Callable[[Shape], bool]) -> Callable[[Shape], int]:
    return lambda shape: 0 if fits(shape) else shape[-1]


# Where a kernel is wrong, by the length of the blocked axis, which is the last one here.
_WHERE: dict[str, tuple[str, Callable[[Shape], int]]] = {
    "OneRow": ("in arrays of one row", _all_if(lambda s: _rows(s) == 1)),
    "OneBlock": ("in an array of one block", _all_if(lambda s: _rows(s) == 1 and s[-1] <= 32)),
    "Tiles": ("where tiles of 128 divide everything", _all_if(lambda s: s == (128, 128))),
    "SmallTiles": ("in a square of one block a row", _all_if(lambda s: s == (32, 32))),
    "OddBlocks": ("in rows of 5 blocks", _all_if(lambda s: s[-1] == 160)),
    "Tall": ("past 256 rows", _all_if(lambda s: _rows(s) > 256)),
    "OneAxis": ("in one axis", _all_if(lambda s: len(s) == 1)),
    "ThreeAxes": ("in three axes", _all_if(lambda s: len(s) == 3)),
    "FourAxes": ("in four axes", _all_if(lambda s: len(s) == 4)),
    "Short": ("in a short last block", lambda s: s[-1] // 32 * 32),
}
# What it does there: the name of the mutant that does it everywhere.
_WHAT: dict[type[Quantizer], str] = {
    special._LosesNaN: "NaN is lost",
    special._NaNWraps: "The scale of NaN is 0",
    special._SaturatesInfinity: "Inf becomes the largest number",
    scale._ZeroBlockOfOne: "A block of zeros has the scale 1",
    scale._StoresZeroUsesOne: "Byte 0 is stored, and 2^-126 is divided by",
    scale._EvenSaturates: "`even` keeps a scale where it rounds amax to Inf",
    elements._HalfUp: "Ties are rounded away from zero",
    elements._FlushesInputs: "Subnormal inputs are zero",
    elements._LosesSignOfZero: "Negative zero becomes zero",
}
_WRONG: tuple[tuple[str, type[Quantizer], str], ...] = (
    ("OneRow", special._LosesNaN, "QNT-38"),
    ("OneRow", scale._ZeroBlockOfOne, "QNT-07"),
    ("OneRow", elements._FlushesInputs, "QNT-37"),
    ("OneBlock", special._SaturatesInfinity, "QNT-38"),
    ("OneBlock", elements._HalfUp, "QNT-36"),
    ("OneBlock", elements._LosesSignOfZero, "QNT-37"),
    ("Tiles", special._NaNWraps, "QNT-38"),
    ("Tiles", scale._StoresZeroUsesOne, "QNT-37"),
    ("SmallTiles", special._SaturatesInfinity, "QNT-38"),
    ("OddBlocks", special._LosesNaN, "QNT-38"),
    ("OddBlocks", scale._ZeroBlockOfOne, "QNT-07"),
    ("Tall", scale._EvenSaturates, "QNT-36"),
    ("OneAxis", special._LosesNaN, "QNT-39"),
    ("OneAxis", scale._ZeroBlockOfOne, "QNT-20"),
    ("ThreeAxes", elements._FlushesInputs, "QNT-39"),
    ("ThreeAxes", scale._ZeroBlockOfOne, "QNT-20"),
    ("FourAxes", special._SaturatesInfinity, "QNT-39"),
    ("Short", special._LosesNaN, "QNT-32"),
    ("Short", special._SaturatesInfinity, "QNT-32"),
    ("Short", scale._ZeroBlockOfOne, "QNT-20"),
    ("Short", scale._StoresZeroUsesOne, "QNT-32"),
    ("Short", elements._FlushesInputs, "QNT-32"),
    ("Short", elements._LosesSignOfZero, "QNT-32"),
)


def _mutant(place: str, other: type[Quantizer], killer: str, axis: int = -1) -> Mutant:
    along = "" if axis == -1 else ", along the axis before the last"
    name = f"quantize, {other.__name__.removeprefix('_')}{place}{'Columns' if along else ''}"
    kernel = _There(place, other, axis)
    return Mutant(
        implementation=numpy_implementation(name, "quantize", kernel, mx=other.mx, axis=axis),
        fault=f"{_WHAT[other]} {_WHERE[place][0]}{along}.",
        killers=(killer,),
    )


class _PadsWithSmall(Quantizer):
    """A short block is filled up with a small positive number."""

    killers = ("QNT-20", "QNT-32")

    def cut(self, x):
        missing = -x.shape[-1] % self.block
        rest = np.full((*x.shape[:-1], missing), 2.0**-100)
        return super().cut(np.concatenate([x, rest], axis=-1))


MUTANTS = (
    *(_mutant(*wrong) for wrong in _WRONG),
    _mutant("OneRow", special._LosesNaN, "QNT-38", -2),
    _mutant("OddBlocks", scale._ZeroBlockOfOne, "QNT-07", -2),
    _mutant("Short", special._SaturatesInfinity, "QNT-32", -2),
    *wrong_ones((_PadsWithSmall,), quantizer),
)
