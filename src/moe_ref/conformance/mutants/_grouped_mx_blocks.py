"""Wrong grouped matmuls on MX operands: what is written into a block, and where blocks lie."""

from typing import ClassVar

import numpy as np

from moe_ref.conformance.mutants._grouped_mx_kernel import (
    BLOCK,
    FORMATS,
    Kernel,
    mutants_in,
)
from moe_ref.spec import MXSpec


class Unquantised(Kernel):
    """Nothing is quantised."""

    killers = ("MXG-02", "MXG-07", "MXG-11", "MXG-12", "MXG-13", "MXG-31", "MXG-32", "MXG-41")

    def quantised(self, a, axis):
        return a.astype(np.float32)


class UndeclaredFloor(Kernel):
    """Scales are rounded down, where rounding up is declared."""

    killers = ("MXG-02", "MXG-04", "MXG-05", "MXG-52", "MXG-53")
    seen = "pytorch/ao#2035"
    mx: ClassVar = MXSpec(rule="floor")
    declared: ClassVar = {"mx": MXSpec()}


class UndeclaredCeil(Kernel):
    """Scales are rounded up to a power of two before the largest element is considered."""

    killers = ("MXG-04", "MXG-05", "MXG-52", "MXG-53")
    mx: ClassVar = MXSpec(rule="ceil")
    declared: ClassVar = {"mx": MXSpec()}


class UndeclaredRoundingUp(Kernel):
    """Scales are rounded up, where OCP's rounding down is declared."""

    killers = ("MXG-02", "MXG-04")
    mx: ClassVar = MXSpec(rule="rceil")
    declared: ClassVar = {"mx": MXSpec(rule="floor")}


class Logarithm(Kernel):
    """The exponent of a scale is a logarithm in float32, rounded up."""

    killers = ("MXG-04", "MXG-05", "MXG-52", "MXG-53")
    seen = "vllm-project/vllm#43557"

    def exponent(self, largest):
        return np.ceil(np.log2(largest / np.float32(FORMATS[self.mx.format].largest)))


class NearestLogarithm(Kernel):
    """The exponent of a scale is rounded to nearest, so that about half of the blocks saturate."""

    killers = ("MXG-02", "MXG-31", "MXG-32")
    seen = "ml-explore/mlx#4353"

    def exponent(self, largest):
        return np.rint(np.log2(largest / np.float32(FORMATS[self.mx.format].largest)))


class NarrowLargest(Kernel):
    """The largest magnitude is rounded to bfloat16 before its exponent is taken."""

    killers = ("MXG-04", "MXG-05", "MXG-52", "MXG-53")
    seen = "pytorch/ao#4725"

    def exponent(self, largest):
        bits = largest.view(np.uint32) + np.uint32(0x8000)
        return super().exponent((bits & np.uint32(0xFFFF0000)).view(np.float32))


class ScaleFromBelow(Kernel):
    """Elements are rounded with one scale, and the stored one is twice as large."""

    killers = ("MXG-02", "MXG-31", "MXG-32")

    def factor(self, byte):
        return np.exp2(byte - 126.0)


class FlushedScale(Kernel):
    """Scale byte 0, a subnormal float32 number, is read as zero."""

    killers = ("MXG-09", "MXG-10", "MXG-54", "MXG-55")
    seen = "jax-ml/jax#26658"

    def factor(self, byte):
        return np.where(byte == 0, 0.0, super().factor(byte))


class HalfScale(Kernel):
    """Elements of a block with scale byte 0 are divided by 2^-126."""

    killers = ("MXG-09", "MXG-10", "MXG-54", "MXG-55")
    seen = "pytorch/ao#4725"

    def factor(self, byte):
        return np.where(byte == 0, 0.5, 1.0) * super().factor(byte)


class LeastLargest(Kernel):
    """The largest magnitude of a block counts as 1e-4 at least."""

    killers = ("MXG-03", "MXG-09", "MXG-10", "MXG-34", "MXG-54", "MXG-55")

    def largest(self, blocks):
        return np.maximum(super().largest(blocks), 1e-4)


class OfTensor(Kernel):
    """What is quantised is first divided by the largest magnitude of its tensor."""

    killers = ("MXG-02", "MXG-24", "MXG-31", "MXG-32")

    def quantised(self, a, axis):
        numbers = np.abs(a.astype(np.float32))
        size = np.max(numbers, where=np.isfinite(numbers), initial=1.0) / np.float32(3)
        return super().quantised(a.astype(np.float32) / size, axis) * size


class FlushedElements(Kernel):
    """Subnormal elements become zero."""

    killers = ("MXG-04", "MXG-05", "MXG-52", "MXG-53")

    def element(self, values):
        smallest = 2.0 ** FORMATS[self.mx.format].smallest
        read = super().element(values)
        return np.where(np.abs(read) < smallest, 0.0, read)


class TiesAway(Kernel):
    """Elements halfway between two numbers go away from zero."""

    killers = ("MXG-02", "MXG-31", "MXG-32")
    seen = "microsoft/microxcaling#4"

    def rounded(self, values):
        return np.trunc(values + np.copysign(0.5, values))


class TruncatedElements(Kernel):
    """Elements are cut off instead of rounded."""

    killers = ("MXG-02", "MXG-31", "MXG-32")

    def rounded(self, values):
        return np.trunc(values)


class Unclipped(Kernel):
    """Under rounding down, elements beyond the largest number are NaN instead of that number."""

    killers = ("MXG-02", "MXG-31", "MXG-32")
    seen = "pytorch/pytorch#178817"
    mx: ClassVar = MXSpec(rule="floor")

    def element(self, values):
        return np.where(np.abs(values) > 464, np.nan, super().element(values))


class OtherFormat(Kernel):
    """Elements are E5M2, where E4M3 is declared."""

    killers = ("MXG-02", "MXG-31", "MXG-32")
    mx: ClassVar = MXSpec(format="mxfp8_e5m2")
    declared: ClassVar = {"mx": MXSpec()}


class DividedByZero(Kernel):
    """A block of zeros is divided by its largest magnitude."""

    killers = ("MXG-08", "MXG-39", "MXG-40")
    seen = "jax-ml/jax#37762"

    def blocks(self, blocks):
        return super().blocks(blocks) + 0 / self.largest(blocks)[..., None].astype(np.float32)


class NanSaturates(Kernel):
    """NaN and Inf are written as the largest number, and do not count for the scale."""

    killers = ("MXG-17", "MXG-18", "MXG-47", "MXG-48", "MXG-49", "MXG-51")
    seen = "NVIDIA/TransformerEngine#3550"

    def blocks(self, blocks):
        finite = np.where(np.isfinite(blocks), blocks, 0)
        largest = np.abs(finite).max(-1, keepdims=True)
        return super().blocks(np.where(np.isfinite(blocks), blocks, largest))


class PoisonsTensor(Kernel):
    """A NaN or Inf anywhere reaches every scale of its tensor."""

    killers = ("MXG-15", "MXG-17", "MXG-45", "MXG-47", "MXG-51")
    seen = "NVIDIA/TransformerEngine#3484"

    def blocks(self, blocks):
        read = super().blocks(blocks)
        return read if np.isfinite(blocks).all() else np.full_like(read, np.nan)


class OneScale(Kernel):
    """A whole row has one scale."""

    killers = ("MXG-03", "MXG-33", "MXG-34")

    def along_last(self, a):
        return self.blocks(a[..., None, :])[..., 0, :]


class LongBlocks(Kernel):
    """Blocks have 64 values."""

    killers = ("MXG-03", "MXG-33")

    def along_last(self, a):
        length = a.shape[-1]
        whole = np.pad(a, ((0, 0),) * (a.ndim - 1) + ((0, -length % (2 * BLOCK)),))
        shape = (*a.shape[:-1], whole.shape[-1] // (2 * BLOCK), 2 * BLOCK)
        return self.blocks(whole.reshape(shape)).reshape(whole.shape)[..., :length]


class AcrossRows(Kernel):
    """Blocks are cut from one row after the other, where they do not divide it."""

    killers = ("MXG-07", "MXG-37", "MXG-38")
    seen = "DeepWok/mase#321"

    def along_last(self, a):
        if a.shape[-1] % BLOCK == 0 or a.ndim != 2:
            return super().along_last(a)
        return super().along_last(a.reshape(-1)).reshape(a.shape)


class LostRest(Kernel):
    """What follows the last whole block is dropped."""

    killers = ("MXG-07", "MXG-37", "MXG-38", "MXG-32")

    def along_last(self, a):
        read = super().along_last(a)
        read[..., a.shape[-1] // BLOCK * BLOCK :] = 0
        return read


class FilledWithOnes(Kernel):
    """A last short block is filled up with what the memory holds, which counts for its scale."""

    killers = ("MXG-07", "MXG-37", "MXG-38", "MXG-34")
    seen = "NVIDIA/TransformerEngine#1945"

    def along_last(self, a):
        length = a.shape[-1]
        filling = np.ones((*a.shape[:-1], -length % BLOCK), a.dtype)
        return super().along_last(np.concatenate([a, filling], axis=-1))[..., :length]


MUTANTS = mutants_in(globals())
