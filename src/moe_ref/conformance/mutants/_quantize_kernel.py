"""A right quantiser in NumPy, in steps that mutants override one by one.

Magnitudes are split with `frexp` in float64, where every step but the rounding is exact.
"""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._mutant import numpy_implementation
from moe_ref.spec import MXSpec

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Elements:
    """A format: stored bits after the point, exponents of smallest normal and largest, and so on.

    Attributes:
        mantissa: bits after the point.
        emin: exponent of the smallest normal number.
        emax: exponent of the largest number.
        largest: the largest number.
        sign: what the code of a negative adds; 0: two's complement.
        nan: the code of NaN; None: there is none.
    """

    mantissa: int
    emin: int
    emax: int
    largest: float
    sign: int
    nan: int | None = None


ELEMENTS = {
    "mxfp8_e4m3": Elements(3, -6, 8, 448.0, 0x80, 0x7F),
    "mxfp8_e5m2": Elements(2, -14, 15, 57344.0, 0x80, 0x7F),
    "mxfp6_e3m2": Elements(2, -2, 4, 28.0, 0x20),
    "mxfp6_e2m3": Elements(3, 0, 2, 7.5, 0x20),
    "mxfp4_e2m1": Elements(1, 0, 2, 6.0, 0x08),
    "mxint8": Elements(6, 0, 0, 127 / 64, 0),
}


def exponents(values: np.ndarray) -> np.ndarray:
    """Exponent of the power of two at or below each magnitude; far below all for zero."""
    _, exponent = np.frexp(values)
    return np.where(values == 0, -2000, exponent.astype(np.int64) - 1)


class Quantizer:
    """A right kernel.

    Args:
        mx: format, rule and policy.
        axis: along which blocks lie.
        block: values that share a scale.
    """

    # What the kernel declares and is made for; mutants choose others.
    mx: MXSpec = MXSpec()
    axis: int = -1
    block: int = 32
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    declared: ClassVar[dict[str, Any]] = {"nan_elements": True}
    # Checks that must notice a mutant, and where its fault was seen.
    killers: tuple[str, ...] = ()
    seen = ""

    @property
    def form(self) -> Elements:
        """The element format."""
        return ELEMENTS[self.mx.format]

    def value(self, x: np.ndarray) -> Arrays:
        """Codes, scales, and the values they are read as."""
        moved = np.moveaxis(self.widen(x), self.axis, -1)
        blocks = self.cut(moved)
        with np.errstate(all="ignore"):
            byte = self.byte(self.amax(blocks))
            codes = self.encode(self.divided(blocks, byte))
            codes, byte = self.special(blocks, codes, byte)
            values = self.read(codes, byte).astype(np.float32)
        joined = {"codes": self.joined(codes, moved), "values": self.joined(values, moved)}
        joined["scales"] = byte.astype(np.uint8)
        return {name: np.moveaxis(array, -1, self.axis) for name, array in joined.items()}

    def widen(self, x):
        """The input in float64."""
        return x.astype(np.float64)

    def cut(self, x):
        """Blocks [..., blocks, block], zeros after the end."""
        missing = -x.shape[-1] % self.block
        padded = np.concatenate([x, np.zeros((*x.shape[:-1], missing))], axis=-1)
        return padded.reshape(*x.shape[:-1], padded.shape[-1] // self.block, self.block)

    def joined(self, blocks, x):
        """Undo `cut`."""
        whole = blocks.shape[-2] * blocks.shape[-1]
        return blocks.reshape(*x.shape[:-1], whole)[..., : x.shape[-1]]

    def amax(self, blocks):
        """The largest magnitude of each block, of those that are finite."""
        return np.where(np.isfinite(blocks), np.abs(blocks), 0).max(axis=-1)

    def byte(self, amax):
        """The scale byte of a finite magnitude."""
        return np.where(amax == 0, 0, self.clamped(self.exponent(amax) + 127))

    def clamped(self, byte):
        """A byte that is no NaN."""
        return np.clip(byte, 0, 254)

    def exponent(self, amax):
        """Exponent of the scale, before it is clamped."""
        form, rule = self.form, self.mx.rule
        if rule == "rceil":
            # A float32 quotient, as kernels have it.
            quotient = (amax.astype(np.float32) / np.float32(form.largest)).astype(np.float64)
            at = exponents(quotient)
            return at + (quotient > np.ldexp(1.0, at))
        at = exponents(amax)
        fraction = np.ldexp(amax, -at)
        up = {
            "floor": fraction < 0,
            "ceil": fraction > 1,
            "rceil_real": fraction > form.largest / 2.0**form.emax,
            "even": fraction >= 2 - 2.0 ** -(form.mantissa + 1),
        }
        return at - form.emax + up[rule]

    def divided(self, blocks, byte):
        """Each value over its scale."""
        return np.ldexp(blocks, 127 - byte[..., None].astype(np.int64))

    def encode(self, scaled):
        """Codes of numbers."""
        form = self.form
        size = np.minimum(np.abs(scaled), 2 * form.largest)  # Inf would have no exponent
        at = np.maximum(exponents(size), form.emin)
        step = np.ldexp(1.0, at - form.mantissa)
        number = self.bounded(self.rounded(size / step) * step)
        return self.signed(np.where(np.isnan(scaled), 0, self.code(number)), scaled)

    def rounded(self, steps):
        """To a whole number of steps."""
        return np.rint(steps)

    def bounded(self, number):
        """No number beyond the largest."""
        return np.minimum(number, self.form.largest)

    def code(self, number):
        """The code of a number of the format."""
        form = self.form
        at = np.maximum(exponents(number), form.emin)
        steps = np.nan_to_num(number / np.ldexp(1.0, at - form.mantissa))
        return steps.astype(np.int64) + ((at - form.emin) << form.mantissa)

    def signed(self, code, scaled):
        """The code with the sign of its value; that of NaN; the largest where there is none."""
        form = self.form
        negative = np.signbit(scaled)
        signed = np.where(negative, code + form.sign if form.sign else -code % 256, code)
        instead = self.code(np.array(form.largest)) if form.nan is None else form.nan
        return np.where(np.isnan(scaled), instead, signed)

    def special(self, blocks, codes, byte):
        """What is done to blocks with NaN and Inf."""
        if self.mx.nonfinite == "te":
            infinite = np.isinf(blocks).any(axis=-1)
            byte = np.where(infinite, 254, byte)
            return np.where(
                infinite[..., None], self.encode(self.divided(blocks, byte)), codes
            ), byte
        bad = self.poisoned(blocks)
        return np.where(bad[..., None], self.form.nan or 0, codes), np.where(bad, 0xFF, byte)

    def poisoned(self, blocks):
        """Blocks that are NaN as a whole."""
        bad = ~np.isfinite(blocks).all(axis=-1)
        if self.mx.rule == "even":
            bad |= self.amax(blocks) >= 2.0**128 * (1 - 2.0 ** -(self.form.mantissa + 2))
        return bad

    def read(self, codes, byte):
        """The values of codes and scales."""
        numbers = self.numbers(codes) * self.scale(byte)[..., None]
        return np.where(byte[..., None] == 0xFF, np.nan, numbers)

    def scale(self, byte):
        """The number a scale byte means."""
        return np.ldexp(1.0, byte.astype(np.int64) - 127)

    def numbers(self, codes):
        """The number each code means."""
        form = self.form
        negative = codes & (form.sign or 0x80) != 0
        size = np.where(negative, 256 - codes, codes) if form.sign == 0 else codes & (form.sign - 1)
        field = np.maximum(size >> form.mantissa, 1)
        whole = np.where(size >> form.mantissa == 0, size, size - ((field - 1) << form.mantissa))
        found = np.ldexp(whole.astype(np.float64), field - 1 + form.emin - form.mantissa)
        if form.nan is not None:
            found = np.where(size > self.code(np.array(form.largest)), np.nan, found)
        return np.where(negative, -found, found)


def quantizer(kernel: type[Quantizer]) -> Implementation:
    """The implementation that a class of quantisers is."""
    name = f"quantize, {kernel.__name__.removeprefix('_')}"
    fields: dict[str, Any] = {"mx": kernel.mx, "axis": kernel.axis, "block": kernel.block}
    fields |= {"dtypes": kernel.dtypes} | kernel.declared
    return numpy_implementation(name, "quantize", kernel(), **fields)
