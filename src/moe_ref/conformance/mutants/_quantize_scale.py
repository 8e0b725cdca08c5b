"""Quantisers with a wrong scale."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._mutant import kernels_in, wrong_ones
from moe_ref.conformance.mutants._quantize_kernel import Quantizer, exponents, quantizer
from moe_ref.spec import MXSpec


class _FloorForRceil(Quantizer):
    """The power of two at or below amax gives the scale where the one above the quotient should."""

    killers = ("QNT-01", "QNT-03")
    seen = "pytorch/ao#2035"

    def exponent(self, amax):
        return exponents(amax) - self.form.emax


class _RceilForFloor(Quantizer):
    """The quotient is rounded up where the rule takes the power of two at or below amax."""

    mx = MXSpec(rule="floor")
    killers = ("QNT-01", "QNT-03")

    def exponent(self, amax):
        at = exponents(amax)
        return at - self.form.emax + (amax > np.ldexp(self.form.largest / 2.0**self.form.emax, at))


class _CeilForRceil(Quantizer):
    """The next scale is taken above every power of two, not above the largest number."""

    killers = ("QNT-01", "QNT-03")

    def exponent(self, amax):
        at = exponents(amax)
        return at - self.form.emax + (amax > np.ldexp(1.0, at))


class _EvenByFloor(Quantizer):
    """`even` does not round amax to the bits of an element first."""

    mx = MXSpec(format="mxfp4_e2m1", rule="even")
    killers = ("QNT-01", "QNT-03")

    def exponent(self, amax):
        return exponents(amax) - self.form.emax


class _EvenTiesDown(Quantizer):
    """`even` rounds a tie of amax down, and so takes the lower scale."""

    mx = MXSpec(rule="even")
    killers = ("QNT-03",)

    def exponent(self, amax):
        at = exponents(amax)
        edge = np.ldexp(2 - 2.0 ** -(self.form.mantissa + 1), at)
        return at - self.form.emax + (amax > edge)


class _Logarithm(Quantizer):
    """The exponent is the floor of a float32 logarithm, which is too large just below a power."""

    mx = MXSpec(rule="floor")
    killers = ("QNT-03",)
    seen = "microsoft/microxcaling#4"

    def exponent(self, amax):
        return np.floor(np.log2(amax.astype(np.float32))) - self.form.emax

    def byte(self, amax):
        return super().byte(amax).astype(np.int64)


class _LogarithmUp(Quantizer):
    """The exponent is the ceiling of a float32 logarithm, which misses what is just above."""

    mx = MXSpec(format="mxfp8_e5m2")
    killers = ("QNT-03",)
    seen = "pytorch/ao#4725"

    def exponent(self, amax):
        quotient = amax.astype(np.float32) / np.float32(self.form.largest)
        return np.ceil(np.log2(quotient))

    def byte(self, amax):
        return super().byte(amax).astype(np.int64)


class _NearestScale(Quantizer):
    """The quotient is cast to E8M0, which rounds it to the nearest power of two."""

    killers = ("QNT-01", "QNT-03")
    seen = "ml-explore/mlx#4353"

    def exponent(self, amax):
        quotient = (amax / self.form.largest).astype(ml_dtypes.float8_e8m0fnu)
        return quotient.view(np.uint8).astype(np.int64) - 127


class _NarrowAmax(Quantizer):
    """The largest magnitude is rounded to bfloat16 before the rule sees it."""

    killers = ("QNT-03",)
    seen = "pytorch/ao#4725"

    def amax(self, blocks):
        return super().amax(blocks).astype(ml_dtypes.bfloat16).astype(np.float64)


class _SignedAmax(Quantizer):
    """The largest value counts, not the largest magnitude."""

    killers = ("QNT-01", "QNT-02", "QNT-43")

    def amax(self, blocks):
        return np.maximum(np.where(np.isfinite(blocks), blocks, 0).max(axis=-1), 0)


class _RealQuotient(Quantizer):
    """`rceil` takes the quotient of real numbers, not the float32 one that is a subnormal."""

    dtypes = ("float32",)
    killers = ("QNT-10",)

    def exponent(self, amax):
        at = exponents(amax)
        return at - self.form.emax + (amax > np.ldexp(self.form.largest / 2.0**self.form.emax, at))


class _RoundedRealQuotient(Quantizer):
    """`rceil_real` divides in float32, where the first magnitude past a boundary is lost."""

    mx = MXSpec(rule="rceil_real")
    dtypes = ("float32",)
    killers = ("QNT-10",)

    def exponent(self, amax):
        quotient = (amax.astype(np.float32) / np.float32(448)).astype(np.float64)
        at = exponents(quotient)
        return at + (quotient > np.ldexp(1.0, at))


class _ConstantsOfE5M2(Quantizer):
    """The largest number and exponent of E5M2 give the scale of E4M3 elements."""

    killers = ("QNT-01", "QNT-02", "QNT-09")

    def exponent(self, amax):
        at = exponents(amax)
        return at - 15 + (amax > np.ldexp(1.75, at))


class _ConstantsOfE4M3(Quantizer):
    """The largest number and exponent of E4M3 give the scale of E5M2 elements."""

    mx = MXSpec(format="mxfp8_e5m2", rule="floor")
    killers = ("QNT-01", "QNT-06", "QNT-11")

    def exponent(self, amax):
        return exponents(amax) - 8


class _NeverZero(Quantizer):
    """Scale bytes begin at 1, as float32 numbers that are not subnormal do."""

    killers = ("QNT-09", "QNT-10")

    def byte(self, amax):
        return np.where(amax == 0, 0, np.maximum(super().byte(amax), 1))


class _StoresZeroUsesOne(Quantizer):
    """Byte 0 is stored, and 2^-126 is divided by: what is read back is half."""

    killers = ("QNT-09", "QNT-10")
    seen = "pytorch/ao#750"

    def divided(self, blocks, byte):
        return super().divided(blocks, np.maximum(byte, 1))


class _FlushesSmallestScale(Quantizer):
    """2^-127, the scale of byte 0, is flushed to zero where it is multiplied: elements are zero."""

    killers = ("QNT-09", "QNT-10")
    seen = "jax-ml/jax#26658"

    def divided(self, blocks, byte):
        return np.where(byte[..., None] == 0, blocks * 0, super().divided(blocks, byte))


class _WrapsBelowZero(Quantizer):
    """A negative byte is not clamped, and becomes a large one."""

    killers = ("QNT-09",)

    def clamped(self, byte):
        return np.asarray(byte).astype(np.int64) % 256


class _ClampsTooLow(Quantizer):
    """Scale bytes end at 253."""

    mx = MXSpec(format="mxint8", rule="floor")
    killers = ("QNT-11",)

    def clamped(self, byte):
        return np.clip(byte, 0, 253)


class _FlushesReciprocal(Quantizer):
    """Values are multiplied by one over the scale, which is subnormal and flushed for byte 254."""

    mx = MXSpec(format="mxint8", rule="floor")
    killers = ("QNT-11",)

    def divided(self, blocks, byte):
        return np.where(byte[..., None] == 254, blocks * 0, super().divided(blocks, byte))


class _ZeroBlockOfOne(Quantizer):
    """A block of zeros has the scale 1."""

    killers = ("QNT-07",)

    def byte(self, amax):
        return np.where(amax == 0, 127, super().byte(amax))


class _ZeroBlockIsNaN(Quantizer):
    """A block of zeros is divided by zero."""

    killers = ("QNT-07",)
    seen = "jax-ml/jax#37762"

    def special(self, blocks, codes, byte):
        codes, byte = super().special(blocks, codes, byte)
        return np.where((blocks == 0).all(axis=-1)[..., None], 0x7F, codes), byte


class _EvenSaturates(Quantizer):
    """`even` keeps a scale where it rounds amax to Inf."""

    mx = MXSpec(rule="even")
    killers = ("QNT-12",)

    def poisoned(self, blocks):
        return ~np.isfinite(blocks).all(axis=-1)


MUTANTS = wrong_ones(kernels_in(globals(), Quantizer), quantizer)
