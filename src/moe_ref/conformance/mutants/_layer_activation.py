"""Wrong layers: what is between the two matrices of an expert."""

import math

import numpy as np

from moe_ref.conformance.mutants._layer_expert import Expert
from moe_ref.conformance.mutants._layer_kernel import Layer, mutants_in


class _Unclamped(Expert):
    def limit(self, spec):
        return math.inf


class ClampMissing(Layer):
    """Gate and up are not clamped."""

    killers = ("LAY-01",)
    expert = _Unclamped()


class _ClampedBelow(Expert):
    def nonlinear(self, before, spec):
        limit = self.limit(spec)
        gate, up = self.halves(before, spec) if spec.gated else (before, before[:, :0])
        gate = np.where(gate < -limit, -limit, gate).astype(gate.dtype)
        return super().nonlinear(np.concatenate([gate, up], axis=1), spec)


class ClampsTheGateBelow(Layer):
    """The gate is clamped on both sides, as up is."""

    killers = ("LAY-01",)
    expert = _ClampedBelow()


class _Alpha(Expert):
    def alpha(self, spec, dtype):
        return np.asarray(1, dtype)


class AlphaIgnored(Layer):
    """The sigmoid of silu has slope 1."""

    killers = ("LAY-01",)
    expert = _Alpha()


class _NoOffset(Expert):
    def offset(self, spec, dtype):
        return np.asarray(0, dtype)


class OffsetIgnored(Layer):
    """Up is not increased by its offset."""

    killers = ("LAY-01",)
    expert = _NoOffset()


class _Tanh(Expert):
    def phi(self, g, spec):
        if spec.activation != "gelu":
            return super().phi(g, spec)
        inner = math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)
        return (0.5 * g * (1 + np.tanh(inner))).astype(g.dtype)


class TanhForErf(Layer):
    """Gelu is approximated with tanh."""

    killers = ("LAY-01",)
    expert = _Tanh()


class _ByExp(Expert):
    def phi(self, g, spec):
        if spec.activation != "silu":
            return super().phi(g, spec)
        e = np.exp(self.alpha(spec, g.dtype) * g)
        return g * e / (1 + e)


class ExpOverflows(Layer):
    """Silu is `g exp(g) / (1 + exp(g))`, NaN where exp overflows."""

    killers = ("LAY-01",)
    expert = _ByExp()


class _SlopeByExp(Expert):
    def slope(self, g, spec):
        if spec.activation != "silu":
            return super().slope(g, spec)
        a = self.alpha(spec, g.dtype)
        e = np.exp(-a * g)
        return 1 / (1 + e) + a * g * (e / (1 + e) ** 2)


class ExpOfSlopeOverflows(Layer):
    """The slope of silu has `exp(-g) / (1 + exp(-g))**2`, NaN where exp overflows."""

    killers = ("LAY-07",)
    expert = _SlopeByExp()


MUTANTS = mutants_in(globals())
