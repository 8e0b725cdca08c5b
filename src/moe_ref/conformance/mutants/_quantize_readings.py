"""Quantisers that read their own codes and scales wrongly, somewhere."""

import abc

import numpy as np

from moe_ref.conformance.mutants._mutant import kernels_in, wrong_ones
from moe_ref.conformance.mutants._quantize_kernel import Quantizer, quantizer
from moe_ref.spec import MXSpec


class _Reading(Quantizer, abc.ABC):
    """A right one, but for the values it gives."""

    def value(self, x):
        found = super().value(x)
        return found | {"values": self.changed(found["values"].copy(), x)}

    @abc.abstractmethod
    def changed(self, values, x):
        """Other values."""


class _ReadsNoInfinity(_Reading):
    """Values beyond float32 are read as its largest number."""

    killers = ("QNT-12", "QNT-36")

    def changed(self, values, x):
        largest = np.finfo(np.float32).max
        return np.where(np.isinf(values), np.copysign(largest, values), values)


class _SaturatedIsNaN(_Reading):
    """What saturates under the scale 0xFE is read as NaN."""

    mx = MXSpec(nonfinite="te")
    killers = ("QNT-14", "QNT-15", "QNT-38")

    def changed(self, values, x):
        return np.where(np.isinf(values), np.nan, values)


class _ReadsNaNElements(Quantizer):
    """NaN elements are read as the number that would follow the largest one."""

    mx = MXSpec(nonfinite="te")
    killers = ("QNT-13", "QNT-38")

    def numbers(self, codes):
        found = super().numbers(codes)
        return np.where(np.isnan(found), np.where(codes & 0x80, -480.0, 480.0), found)


class _ReadsZerosAsNaN(_Reading):
    """A block of zeros is read as NaN: zero over its scale, times it."""

    killers = ("QNT-07", "QNT-37")

    def changed(self, values, x):
        return np.where((x == 0).all(axis=-1, keepdims=True), np.nan, values)


class _ReadsZerosWithoutSigns(_Reading):
    """Negative zero is read as zero."""

    killers = ("QNT-08", "QNT-37")

    def changed(self, values, x):
        return values + np.float32(0)


class _ReadsNothingSmall(_Reading):
    """Values below the smallest normal number are read as zero, where there are 128 rows."""

    killers = ("QNT-37",)

    def changed(self, values, x):
        tiny = np.abs(values) < 2.0**-126
        return np.where(tiny & (len(x) == 128), np.copysign(np.float32(0), values), values)


class _ReadsShortBlocks(_Reading):
    """Values of a short block are those of the first one."""

    killers = ("QNT-32",)

    def changed(self, values, x):
        short = x.shape[-1] % self.block
        if short:
            values[..., -short:] = values[..., :short]
        return values


class _ReadsShortBlockAlone(_Reading):
    """The scale of a short block that is alone in its row is read as one."""

    killers = ("QNT-32",)

    def changed(self, values, x):
        return values * 2 if x.shape[-1] < self.block else values


class _ReadsFirstMatrix(_Reading):
    """In three axes the values of the first matrix are given for all of them."""

    killers = ("QNT-31", "QNT-39")

    def changed(self, values, x):
        return np.broadcast_to(values[:1], values.shape) if x.ndim == 3 else values


class _ReadsFirstTile(_Reading):
    """Values past the first 128 columns are not written."""

    killers = ("QNT-34", "QNT-36")

    def changed(self, values, x):
        values[..., 128:] = 0
        return values


class _ReadsFirstRows(_Reading):
    """Values past the first 128 rows are those of the first rows."""

    killers = ("QNT-33", "QNT-36")

    def changed(self, values, x):
        return values[np.arange(len(values)) % 128] if x.ndim == 2 else values


class _ReadsSquareTransposed(_Reading):
    """Values are transposed where there are as many rows as columns."""

    killers = ("QNT-30",)

    def changed(self, values, x):
        return values.T if x.ndim == 2 and x.shape[0] == x.shape[1] else values


class _ReadsTheLastCall(_Reading):
    """A second call gives the values of the first one, with the sign changed."""

    killers = ("QNT-40",)

    def __init__(self):
        self._last = b""

    def changed(self, values, x):
        again, self._last = self._last == x.tobytes(), x.tobytes()
        return -values if again else values


MUTANTS = wrong_ones(kernels_in(globals(), Quantizer), quantizer)
