"""Wrong grouped matmuls of either kind: Inf, or large numbers, are others in one pass."""

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._grouped_passes import OPS, Killers, Pass, wrong
from moe_ref.conformance.mutants._mutant import Mutant


class FiniteInf(Pass):
    """Inf of one sign in an operand is read as a large number."""

    def before(self, where, **given):
        name, sign = self.how["of"], self.how["sign"]
        array = given[name]
        large = np.asarray(float(ml_dtypes.finfo(array.dtype).max) / 1024, array.dtype)
        inf = array == np.asarray(float(f"{sign}inf"), array.dtype)
        return {name: np.where(inf, -large if sign == "-" else large, array)}


class UnsignedInf(Pass):
    """Results that are -Inf come out as Inf."""

    def after(self, where, result, given):
        return np.where(np.isinf(result), np.abs(result), result)


class SpreadInf(Pass):
    """An Inf in a row of x reaches the gradient of that row."""

    def after(self, where, result, given):
        return np.where(np.isinf(given["x"]).any(1, keepdims=True), np.nan, result).astype(
            result.dtype
        )


class Clipped(Pass):
    """Finite numbers of an operand, or of the result, are clipped."""

    def before(self, where, **given):
        name = self.how["of"]
        return {name: self._clipped(given[name])} if name in given else {}

    def after(self, where, result, given):
        return result if self.how["of"] in given else self._clipped(result)

    def _clipped(self, array: np.ndarray) -> np.ndarray:
        limit = np.asarray(self.how["at"], array.dtype)
        return np.where(np.isfinite(array), np.clip(array, -limit, limit), array)


# Operands of each pass, and the checks that have an Inf there; checks that have large numbers.
_INF: tuple[tuple[str, Killers], ...] = (
    ("x", {"y": (10, 17), "dw": (39, 51)}),
    ("w", {"y": (11, 18), "dx": (41, 49)}),
    ("cotangent", {"dx": (40, 47), "dw": (39, 48)}),
)
_LARGE: Killers = {"y": (73, 3), "dx": (74, 33), "dw": (75, 34)}


def _of(op: str) -> tuple[Mutant, ...]:
    made = []
    for name, killers in _INF:
        for sign in "+-":
            made += wrong(op, FiniteInf, {"of": name, "sign": sign}, killers)
        large = {where: _LARGE[where] for where in killers}
        made += wrong(op, Clipped, {"of": name, "at": 100.0}, large)
    made += wrong(op, Clipped, {"of": "the result", "at": 65504.0}, _LARGE)
    made += wrong(op, SpreadInf, {}, {"dx": (40, 85)})
    # Of MX operands with an Inf, all results are NaN.
    made += wrong(op, UnsignedInf, {}, {"y": (11, 0), "dx": (40, 0), "dw": (39, 0)})
    return tuple(made)


# By operation.
MUTANTS: dict[str, tuple[Mutant, ...]] = {op: _of(op) for op in OPS}
