"""Quantisers whose blocks are wrong."""

import numpy as np

from moe_ref.conformance.mutants._mutant import kernels_in, wrong_ones
from moe_ref.conformance.mutants._quantize_kernel import Quantizer, quantizer


class _TransposedScales(Quantizer):
    """Scales lie in memory in the transposed order."""

    killers = ("QNT-01", "QNT-30", "QNT-41")

    def value(self, x):
        found = super().value(x)
        scales = found["scales"]
        return found | {"scales": np.ascontiguousarray(scales.T).reshape(scales.shape)}


class _FollowsTheShape(Quantizer):
    """Blocks lie along the first axis where it is as long as the last one."""

    killers = ("QNT-30",)

    def value(self, x):
        if x.ndim != 2 or x.shape[0] != x.shape[1]:
            return super().value(x)
        return {name: array.T for name, array in super().value(x.T).items()} | {
            "scales": super().value(x.T)["scales"]
        }


class _FirstAxis(Quantizer):
    """With three axes, blocks lie along the first one where that is as long as the last."""

    killers = ("QNT-31",)

    def value(self, x):
        if x.ndim != 3 or x.shape[0] != x.shape[2]:
            return super().value(x)
        return {n: np.moveaxis(a, -1, 0) for n, a in super().value(np.moveaxis(x, 0, -1)).items()}


class _SwappedColumns(Quantizer):
    """Scales of each four blocks come in the order that hardware wants them."""

    killers = ("QNT-01", "QNT-34")

    def value(self, x):
        found = super().value(x)
        whole = found["scales"].shape[-1] // 4 * 4
        order = np.arange(found["scales"].shape[-1])
        order[:whole] = order[:whole].reshape(-1, 2, 2).swapaxes(-1, -2).reshape(-1)
        return found | {"scales": found["scales"][..., order]}


class _SwappedInWholeTiles(_SwappedColumns):
    """Scales come in the order of the hardware where tiles of 128 divide rows and columns."""

    killers = ("QNT-30",)

    def value(self, x):
        whole = x.ndim == 2 and x.size and not x.shape[0] % 128 and not x.shape[1] % 128
        return super().value(x) if whole else Quantizer.value(self, x)


class _NeighbourCounts(Quantizer):
    """The next block's values count in a block's largest."""

    killers = ("QNT-01", "QNT-45")

    def amax(self, blocks):
        own = super().amax(blocks)
        return np.maximum(own, np.concatenate([own[..., 1:], own[..., -1:]], axis=-1))


class _RowScale(Quantizer):
    """One scale serves the whole row."""

    killers = ("QNT-02", "QNT-30", "QNT-45")

    def amax(self, blocks):
        own = super().amax(blocks)
        return np.broadcast_to(own.max(axis=-1, keepdims=True), own.shape)


class _StaleMaximum(Quantizer):
    """The largest magnitude is not reset from one row to the next."""

    killers = ("QNT-01", "QNT-30", "QNT-41")

    def amax(self, blocks):
        own = super().amax(blocks)
        return np.maximum.accumulate(own, axis=0) if own.ndim > 1 else own


class _SkipsLastValue(Quantizer):
    """The last value of a block does not count in its largest."""

    killers = ("QNT-02", "QNT-03", "QNT-42")

    def amax(self, blocks):
        return super().amax(blocks[..., :-1] if blocks.shape[-1] > 1 else blocks)


class _Straddles(Quantizer):
    """A block that is short is filled up from the next row."""

    killers = ("QNT-32",)
    seen = "DeepWok/mase#321"

    def cut(self, x):
        missing = -x.shape[-1] % self.block
        ends = (np.arange(x[..., 0].size) + 1).reshape(*x.shape[:-1], 1) * x.shape[-1]
        rest = np.append(x, np.zeros(missing + 1))  # nothing follows the last row
        after = rest[np.minimum(ends + np.arange(missing), x.size)]
        return super().cut(np.concatenate([x, after], axis=-1))


class _RepeatsEdge(Quantizer):
    """A block that is short is filled up with the first values of its row."""

    killers = ("QNT-32",)
    seen = "NVIDIA/TransformerEngine#1945"

    def cut(self, x):
        whole = -(-x.shape[-1] // self.block) * self.block
        return super().cut(np.take(x, np.arange(whole) % x.shape[-1], axis=-1))


class _FirstTileOfColumns(Quantizer):
    """Codes past the first 128 columns are not written."""

    killers = ("QNT-34",)

    def joined(self, blocks, x):
        whole = super().joined(blocks, x).copy()
        whole[..., 128:] = 0
        return whole


class _FirstTileOfRows(Quantizer):
    """Scales past the first 128 rows are those of the first rows again."""

    killers = ("QNT-33",)

    def amax(self, blocks):
        own = super().amax(blocks)
        return own[np.arange(len(own)) % 128] if own.ndim > 1 else own


class _ThousandColumns(Quantizer):
    """The largest of a block is looked up among the first 64 blocks of a row."""

    killers = ("QNT-34",)

    def amax(self, blocks):
        own = super().amax(blocks)
        return own[..., np.arange(own.shape[-1]) % 64]


class _NoRowsIsOne(Quantizer):
    """Without rows there is one row of scales all the same."""

    killers = ("QNT-35",)

    def value(self, x):
        found = super().value(x)
        if x.size == 0:
            found["scales"] = np.zeros((1, *found["scales"].shape[1:]), np.uint8)
        return found


class _Random(Quantizer):
    """Elements are rounded up or down at random."""

    killers = ("QNT-40", "QNT-46")

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def rounded(self, steps):
        # What is a whole number of steps stays one, but not always the same.
        return np.floor(steps + self._rng.uniform(0, 1.01, steps.shape))


class _LargerIsFiner(Quantizer):
    """Blocks of magnitudes above 2^20 are quantised with the next scale."""

    killers = ("QNT-02", "QNT-44")

    def exponent(self, amax):
        return super().exponent(amax) + (amax > 2.0**20)


MUTANTS = wrong_ones(kernels_in(globals(), Quantizer), quantizer)
