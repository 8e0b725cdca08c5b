"""Right quantisers that do it another way."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._quantize_kernel import Quantizer, quantizer
from moe_ref.spec import MXSpec


class TableSearch(Quantizer):
    """Codes by a search among the middles between all numbers; the rule without rounding."""

    mx = MXSpec(format="mxfp8_e5m2", rule="rceil_real", nonfinite="te")

    def encode(self, scaled):
        codes = np.arange(self.code(np.array(self.form.largest)) + 1)
        numbers = self.numbers(codes)
        size = np.nan_to_num(np.abs(scaled), nan=0.0, posinf=np.inf)
        middles = (numbers[1:] + numbers[:-1]) / 2
        low, high = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
        return self.signed(np.where(low % 2 == 0, low, high), scaled)


class Patterns(Quantizer):
    """Scales and codes from float32 patterns, in whole numbers."""

    mx = MXSpec(format="mxfp6_e2m3", rule="even")

    def exponent(self, amax):
        pattern = amax.astype(np.float32).view(np.uint32).astype(np.int64)
        field, fraction = pattern >> 23, pattern & 0x7FFFFF
        half = 1 << (22 - self.form.mantissa)
        up = ((fraction + half) >> 23).astype(np.int64)
        return np.where(field == 0, -150, field - 127) - self.form.emax + up

    def encode(self, scaled):
        form = self.form
        pattern = np.nan_to_num(np.abs(scaled)).astype(np.float32).view(np.uint32).astype(np.int64)
        field = pattern >> 23
        significand = (pattern & 0x7FFFFF) | ((field > 0).astype(np.int64) << 23)
        below = np.maximum(form.emin - (field - 127), 0)
        dropped = np.minimum(23 - form.mantissa + below, 30)
        odd = (significand >> dropped) & 1
        kept = (significand + (1 << (dropped - 1)) - 1 + odd) >> dropped
        code = kept + (np.maximum(field - 127 - form.emin, 0) << form.mantissa)
        return self.signed(np.minimum(code, self.code(np.array(form.largest))), scaled)


class Cast(Quantizer):
    """The quotient in float32, clipped and cast by ml_dtypes; codes are given in its dtype."""

    def encode(self, scaled):
        narrow = scaled.astype(np.float32)
        clipped = np.clip(narrow, -self.form.largest, self.form.largest)
        return clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).astype(np.int64)

    def value(self, x):
        found = super().value(x)
        codes = np.ascontiguousarray(found["codes"].astype(np.uint8))
        scales = np.ascontiguousarray(found["scales"])
        return codes.view(ml_dtypes.float8_e4m3fn), scales.view(ml_dtypes.float8_e8m0fnu)


class Columns(Quantizer):
    """Blocks along the axis before the last, one after the other; nothing is read back."""

    mx = MXSpec(format="mxfp4_e2m1", rule="floor")
    axis = -2
    declared = {}  # noqa: RUF012

    def value(self, x):
        x = np.moveaxis(x, -2, 0)
        parts = [
            self.of_block(x[first : first + self.block]) for first in range(0, len(x), self.block)
        ]
        codes = np.concatenate([part[0] for part in parts])
        scales = np.stack([part[1] for part in parts])
        return np.moveaxis(codes, 0, -2), np.moveaxis(scales, 0, -2)

    def of_block(self, x):
        """Codes and scales of values [block, ...]."""
        wide = np.moveaxis(x.astype(np.float64), 0, -1)
        with np.errstate(all="ignore"):
            byte = self.byte(self.amax(wide))
            codes, byte = self.special(wide, self.encode(self.divided(wide, byte)), byte)
        return np.moveaxis(codes, -1, 0).astype(np.int32), byte.astype(np.int32)


class Sixteen(Quantizer):
    """Blocks of 16, multiples of 1/64."""

    mx = MXSpec(format="mxint8", rule="ceil")
    block = 16


class Halves(Quantizer):
    """float16, whole tiles, a clear error for what is not."""

    mx = MXSpec(format="mxfp6_e3m2")
    dtypes = ("float16",)
    declared = {"multiple_of": {"rows": 128, "k": 64}}  # noqa: RUF012

    def value(self, x):
        if x.shape[-1] % 64 or x[..., 0].size % 128:
            raise AssertionError(f"{x.shape} is not what it declares to take")
        return super().value(x)


class OtherPolicy(Quantizer):
    """`even`, with NaN and Inf as Transformer Engine has them; what is read back is narrow."""

    mx = MXSpec(rule="even", nonfinite="te")

    def value(self, x):
        found = super().value(x)
        return found | {"values": found["values"].astype(ml_dtypes.bfloat16)}


CORRECT = tuple(
    quantizer(kernel)
    for kernel in (
        Quantizer,
        TableSearch,
        Patterns,
        Cast,
        Columns,
        Sixteen,
        Halves,
        OtherPolicy,
    )
)
