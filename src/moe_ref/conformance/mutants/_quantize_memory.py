"""Quantisers that treat memory wrongly: their results, their input, or what they keep."""

import numpy as np

from moe_ref.conformance.mutants._mutant import kernels_in, wrong_ones
from moe_ref.conformance.mutants._quantize_kernel import Quantizer, quantizer


class _SameMemory(Quantizer):
    """Every call puts its results where the last one of the same shape had them."""

    killers = ("QNT-50",)
    kept = ("codes", "scales", "values")

    def __init__(self):
        self._memory: dict = {}

    def value(self, x):
        found = super().value(x)
        for name in self.kept:
            array = found[name]
            memory = self._memory.setdefault((name, array.shape), array.copy())
            memory[...] = array
            found[name] = memory
        return found


class _SameMemoryOfValues(_SameMemory):
    """Every call puts the values it reads where the last one of the same shape had them."""

    kept = ("values",)


class _OneBuffer(Quantizer):
    """Every call puts its codes at the beginning of one buffer, whatever their shape is."""

    killers = ("QNT-50", "QNT-53")

    def __init__(self):
        self._buffer = np.zeros(2**16, np.int64)

    def value(self, x):
        found = super().value(x)
        if x.size > self._buffer.size:
            return found
        memory = self._buffer[: x.size].reshape(x.shape)
        memory[...] = found["codes"]
        return found | {"codes": memory}


class _Keeps(Quantizer):
    """A right one with a workspace for each dtype and size."""

    def __init__(self):
        self._rooms: dict = {}
        self._dtype = np.dtype(np.float32)

    def widen(self, x):
        self._dtype = x.dtype
        return super().widen(x)


class _StaleColumns(_Keeps):
    """A short block is filled up with what a wider array had there, in the call before."""

    killers = ("QNT-53",)

    def cut(self, x):
        whole = -(-x.shape[-1] // self.block) * self.block
        rows = x[..., 0].size
        room = self._rooms.get((rows, self._dtype), np.zeros((rows, 0)))
        missing = np.zeros((rows, max(whole - room.shape[1], 0)))
        room = np.concatenate([room, missing], axis=-1)
        room[:, : x.shape[-1]] = x.reshape(rows, x.shape[-1])
        self._rooms[rows, self._dtype] = room
        return super().cut(room[:, :whole].reshape(*x.shape[:-1], whole))


class _StaleRows(_Keeps):
    """The largest magnitudes are cleared only where there are more rows of them than before."""

    killers = ("QNT-53",)

    def amax(self, blocks):
        own, key = super().amax(blocks), (blocks.shape[-2], self._dtype)
        room = self._rooms.get(key, np.zeros(0))
        if own.size >= room.size:
            self._rooms[key] = own.reshape(-1)
            return own
        return np.maximum(own, room[: own.size].reshape(own.shape))


class _StaleFlags(_Keeps):
    """Which blocks are NaN is remembered where the next array has fewer of them."""

    killers = ("QNT-53",)

    def poisoned(self, blocks):
        own = super().poisoned(blocks)
        flags = self._rooms.get(self._dtype, np.zeros(0, bool))
        self._rooms[self._dtype] = own.reshape(-1)
        return own | flags[: own.size].reshape(own.shape) if own.size < flags.size else own


class _InPlace(Quantizer):
    """NaN is replaced in the input."""

    killers = ("QNT-51",)

    def value(self, x):
        found = super().value(x)
        x[self.cleaned(x)] = 0
        return found

    def cleaned(self, x):
        """Which values are replaced."""
        return np.isnan(x)


class _InfinityInPlace(_InPlace):
    """Inf is replaced in the input."""

    def cleaned(self, x):
        return np.isinf(x)


class _NegativeInfinityInPlace(_InPlace):
    """-Inf is replaced in the input, where it has one row."""

    def cleaned(self, x):
        return np.isneginf(x.astype(np.float64)) & (len(x) == 1)


class _InfinityOfMatricesInPlace(_InPlace):
    """Inf is replaced in the input, where it has three axes."""

    def cleaned(self, x):
        return np.isinf(x) & (x.ndim == 3)


class _SubnormalsInPlace(_InPlace):
    """Subnormal values are flushed in the input."""

    def cleaned(self, x):
        return (x != 0) & (np.abs(x.astype(np.float64)) < 2.0**-126)


class _SignsInPlace(_InPlace):
    """Negative zero becomes zero in the input."""

    def cleaned(self, x):
        return x == 0


class _ShortInPlace(_InPlace):
    """The last value of a row is lost in the input where its block is short."""

    def cleaned(self, x):
        last = np.zeros(x.shape, bool)
        last[..., -1:] = x.shape[-1] % self.block != 0
        return last


class _ReadsDense(Quantizer):
    """The input is read as if its numbers lay one after the other, whatever its strides are."""

    killers = ("QNT-52",)

    def value(self, x):
        return super().value(_as_if_dense(x))


class _ReadsDenseMatrices(Quantizer):
    """Strides are seen, but those of several matrices are taken for those of dense ones."""

    killers = ("QNT-52",)

    def value(self, x):
        return super().value(_as_if_dense(x) if x.ndim == 3 else x)


class _StridedZerosLoseSigns(Quantizer):
    """Negative zero becomes zero where the input has gaps, which is copied by an addition."""

    killers = ("QNT-52",)

    def widen(self, x):
        return super().widen(x) + (0.0 if x.strides[-1] > x.itemsize else -0.0)


class _ValuesOfDense(Quantizer):
    """The values that are read are those of an input whose numbers lie one after the other."""

    killers = ("QNT-52",)

    def value(self, x):
        return super().value(x) | {"values": super().value(_as_if_dense(x))["values"]}


def _as_if_dense(x: np.ndarray) -> np.ndarray:
    strides = np.empty(x.shape, x.dtype).strides
    return np.lib.stride_tricks.as_strided(x, x.shape, strides)


MUTANTS = wrong_ones(kernels_in(globals(), Quantizer), quantizer)
