"""Quantisers with wrong elements, or that read them wrongly."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._mutant import kernels_in, wrong_ones
from moe_ref.conformance.mutants._quantize_kernel import Quantizer, quantizer
from moe_ref.spec import MXSpec


class _HalfUp(Quantizer):
    """Ties are rounded away from zero."""

    killers = ("QNT-04",)
    seen = "microsoft/microxcaling#4"

    def rounded(self, steps):
        return np.floor(steps + 0.5)


class _Truncates(Quantizer):
    """Elements are cut off toward zero."""

    killers = ("QNT-01", "QNT-02", "QNT-04", "QNT-06")

    def rounded(self, steps):
        return np.floor(steps)


class _TwiceByColumns(Quantizer):
    """What is quantised was quantised before, in blocks along the other axis."""

    killers = ("QNT-02", "QNT-45")
    seen = "NVIDIA/TransformerEngine#3359"

    def widen(self, x):
        if x.ndim < 2:
            return super().widen(x)
        first = Quantizer()
        first.axis = -2
        return first.value(x)["values"].astype(np.float64)


class _ThroughE5M2(Quantizer):
    """Elements are rounded to E5M2 first."""

    killers = ("QNT-01", "QNT-02")

    def divided(self, blocks, byte):
        scaled = super().divided(blocks, byte)
        return scaled.astype(np.float32).astype(ml_dtypes.float8_e5m2).astype(np.float64)


class _ThroughBfloat16(Quantizer):
    """float32 inputs are rounded to bfloat16 on the way."""

    dtypes = ("float32",)
    killers = ("QNT-03", "QNT-04")
    seen = "vllm-project/vllm#43557"

    def widen(self, x):
        return x.astype(ml_dtypes.bfloat16).astype(np.float64)


class _ThroughFloat16(Quantizer):
    """The quotient is a float16 number before it is an element: small ones are rounded twice."""

    mx = MXSpec(format="mxfp8_e5m2")
    killers = ("QNT-04", "QNT-06")

    def divided(self, blocks, byte):
        return super().divided(blocks, byte).astype(np.float16).astype(np.float64)


class _ScaledAfterRounding(Quantizer):
    """Codes are made under the scale of `floor`, and stored beside that of the rule."""

    killers = ("QNT-01", "QNT-02", "QNT-46")
    seen = "ROCm/FlyDSL#590"

    def divided(self, blocks, byte):
        amax = self.amax(blocks)
        floor = np.frexp(amax)[1] - 1 - self.form.emax + 127
        return super().divided(blocks, np.clip(floor, 0, 254))


class _FlushesElements(Quantizer):
    """Elements below the smallest normal number of the format are zero."""

    killers = ("QNT-06",)

    def bounded(self, number):
        return super().bounded(np.where(number < 2.0**self.form.emin, 0, number))


class _FlushesInputs(Quantizer):
    """Subnormal inputs are zero."""

    killers = ("QNT-09",)
    seen = "jax-ml/jax#26658"

    def widen(self, x):
        tiny = float(ml_dtypes.finfo(x.dtype).smallest_normal)
        wide = x.astype(np.float64)
        return np.where(np.abs(wide) < tiny, np.copysign(0.0, wide), wide)


class _OverflowIsNaN(Quantizer):
    """What rounds to more than the largest number is NaN."""

    mx = MXSpec(rule="floor")
    killers = ("QNT-01", "QNT-05")
    seen = "pytorch/pytorch#178817"

    def encode(self, scaled):
        return super().encode(np.where(np.abs(scaled) > 464, np.nan, scaled))


class _OverflowIsInfinity(Quantizer):
    """What rounds to more than the largest number is Inf."""

    mx = MXSpec(format="mxfp8_e5m2", rule="floor")
    killers = ("QNT-05",)

    def encode(self, scaled):
        codes = super().encode(scaled)
        return np.where(np.abs(scaled) >= 61440, (codes & 0x80) | 0x7C, codes)


class _EndsAt240(Quantizer):
    """The largest number is 240, as in E4M3 with Inf."""

    killers = ("QNT-01", "QNT-03", "QNT-05")

    def bounded(self, number):
        return np.minimum(number, 240.0)


class _LosesSignOfZero(Quantizer):
    """Negative zero becomes zero."""

    killers = ("QNT-08",)
    seen = "pytorch/ao#750"

    def widen(self, x):
        return super().widen(x) + 0.0


class _ZeroBlockLosesSigns(Quantizer):
    """A block of zeros is written as zeros without their signs."""

    killers = ("QNT-08",)

    def special(self, blocks, codes, byte):
        codes, byte = super().special(blocks, codes, byte)
        return np.where((blocks == 0).all(axis=-1, keepdims=True), 0, codes), byte


class _LosesSignBelow(Quantizer):
    """Negative values that are rounded to zero become positive zero."""

    killers = ("QNT-08", "QNT-06")

    def encode(self, scaled):
        codes = super().encode(scaled)
        return np.where((codes == 0x80) & (scaled < 0), 0, codes)


class _SignBit(Quantizer):
    """Integers have a sign bit, not two's complement."""

    mx = MXSpec(format="mxint8")
    killers = ("QNT-01", "QNT-43")

    def encode(self, scaled):
        codes = super().encode(np.abs(scaled))
        return np.where(scaled < 0, codes | 0x80, codes)


class _UsesMinusTwo(Quantizer):
    """Integers may be -2, which has no positive counterpart."""

    mx = MXSpec(format="mxint8", rule="floor")
    killers = ("QNT-05", "QNT-43")

    def encode(self, scaled):
        return np.where(scaled <= -(2 - 2.0**-7), 0x80, super().encode(scaled))


class _SignInBitSeven(Quantizer):
    """The sign of a code of four bits lies in bit 7."""

    mx = MXSpec(format="mxfp4_e2m1")
    killers = ("QNT-01", "QNT-43")

    def encode(self, scaled):
        codes = super().encode(scaled)
        return np.where(codes & 8, codes ^ 0x88, codes)


class _ReadsZeroScaleAsZero(Quantizer):
    """Values of scale byte 0 are read as zero."""

    killers = ("QNT-18",)
    seen = "NVIDIA/TransformerEngine#2408"

    def scale(self, byte):
        return np.where(byte == 0, 0, super().scale(byte))


class _ReadsNaNScaleAsNumber(Quantizer):
    """The scale 0xFF is read as 2^128."""

    declared = {}  # noqa: RUF012
    killers = ("QNT-19",)
    seen = "NVIDIA/TransformerEngine#3262"

    def special(self, blocks, codes, byte):
        kept = codes
        codes, byte = super().special(blocks, codes, byte)
        return kept, byte

    def read(self, codes, byte):
        return self.numbers(codes) * self.scale(byte)[..., None]


class _ReadsSubnormalsAsNormal(Quantizer):
    """Subnormal codes are read as if a one stood before the point."""

    killers = ("QNT-17",)

    def numbers(self, codes):
        found = super().numbers(codes)
        small = (codes & 0x7F) < 8
        return np.where(small & (codes & 0x7F != 0), found + np.sign(found) * 2.0**-6, found)


MUTANTS = wrong_ones(kernels_in(globals(), Quantizer), quantizer)
