"""Quantisers that treat NaN or Inf wrongly."""

import numpy as np

from moe_ref.conformance.mutants._mutant import kernels_in, wrong_ones
from moe_ref.conformance.mutants._quantize_kernel import Quantizer, quantizer
from moe_ref.spec import MXSpec


class _LosesNaN(Quantizer):
    """The maximum drops NaN: its block has the scale of the others."""

    declared = {}  # noqa: RUF012
    killers = ("QNT-13", "QNT-15")
    seen = "NVIDIA/TransformerEngine#3550"

    def poisoned(self, blocks):
        return np.isinf(blocks).any(axis=-1) & ~np.isnan(blocks).any(axis=-1)


class _OneNaN(Quantizer):
    """NaN is known by the bits that it usually has, and others are large numbers."""

    declared = {}  # noqa: RUF012
    killers = ("QNT-13", "QNT-38")

    def widen(self, x):
        wide = x.astype(np.float32)
        usual = (wide.view(np.uint32) & 0x7FFFFFFF) == 0x7FC00000
        return np.where(np.isnan(wide) & ~usual, 2.0**100, wide.astype(np.float64))


class _LosesEarlyNaN(Quantizer):
    """The maximum keeps a NaN only if it comes last."""

    declared = {}  # noqa: RUF012
    killers = ("QNT-13", "QNT-15")
    seen = "NVIDIA/TransformerEngine#3550"

    def poisoned(self, blocks):
        finite = np.isfinite(blocks)
        last = np.isnan(blocks[..., -1])
        return last | (np.isinf(blocks).any(axis=-1) & (finite | np.isinf(blocks)).all(axis=-1))


class _SaturatesInfinity(Quantizer):
    """Inf becomes the largest number under the largest scale, where it should poison."""

    declared = {}  # noqa: RUF012
    killers = ("QNT-14",)
    seen = "pytorch/ao#4725"

    def special(self, blocks, codes, byte):
        codes, byte = super().special(blocks, codes, byte)
        infinite = np.isinf(blocks).any(axis=-1) & ~np.isnan(blocks).any(axis=-1)
        largest = np.where(np.isinf(blocks), np.where(blocks > 0, 0x7E, 0xFE), 0)
        return np.where(infinite[..., None], largest, codes), np.where(infinite, 247, byte)


class _PoisonsRow(Quantizer):
    """A NaN poisons all blocks of its row."""

    killers = ("QNT-13", "QNT-14")

    def poisoned(self, blocks):
        bad = super().poisoned(blocks)
        return np.broadcast_to(bad.any(axis=-1, keepdims=True), bad.shape)


class _NaNWraps(Quantizer):
    """The scale of NaN is 0xFF + 1, which is 0 in a byte."""

    declared = {}  # noqa: RUF012
    killers = ("QNT-13",)

    def special(self, blocks, codes, byte):
        codes, byte = super().special(blocks, codes, byte)
        return codes, np.where(np.isnan(blocks).any(axis=-1), 0, byte)


class _InfinityIsNaN(Quantizer):
    """Inf becomes a NaN element under 0xFE, where it should become the largest number."""

    mx = MXSpec(nonfinite="te")
    killers = ("QNT-14",)

    def encode(self, scaled):
        return super().encode(np.where(np.isinf(scaled), np.nan, scaled))


class _InfinityOf255(Quantizer):
    """Inf has the scale 0xFF, where the policy wants 0xFE."""

    mx = MXSpec(nonfinite="te")
    killers = ("QNT-14", "QNT-15")
    seen = "NVIDIA/TransformerEngine#2647"

    def special(self, blocks, codes, byte):
        codes, byte = super().special(blocks, codes, byte)
        return codes, np.where(np.isinf(blocks).any(axis=-1), 255, byte)


class _NaNSpreads(Quantizer):
    """A NaN poisons its block, where the policy wants it to stay alone."""

    mx = MXSpec(nonfinite="te")
    killers = ("QNT-13",)

    def special(self, blocks, codes, byte):
        codes, byte = super().special(blocks, codes, byte)
        bad = np.isnan(blocks).any(axis=-1)
        return np.where(bad[..., None], 0x7F, codes), np.where(bad, 0xFF, byte)


class _OrdinaryElements(Quantizer):
    """Elements under the scale 0xFF are declared NaN and are numbers."""

    killers = ("QNT-16",)

    def special(self, blocks, codes, byte):
        kept = np.where(np.isfinite(blocks), codes, 0x7F)
        _, byte = super().special(blocks, codes, byte)
        return kept, byte


MUTANTS = wrong_ones(kernels_in(globals(), Quantizer), quantizer)
