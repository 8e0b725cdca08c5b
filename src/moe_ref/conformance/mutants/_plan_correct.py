"""Right `plan`s that do it another way."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._mutant import numpy_implementation
from moe_ref.conformance.mutants._plan_kernel import Plan, wide
from moe_ref.spec import Numerics


class CountingSort(Plan):
    """Counts instead of sorting: the row is the number of earlier slots of the same expert."""

    def sort(self, owners):
        one_hot = owners[:, None] == np.arange(owners.max(initial=-1) + 1)
        earlier = (np.cumsum(one_hot, axis=0) - one_hot)[np.arange(len(owners)), owners]
        load = one_hot.sum(axis=0)
        order = np.empty(len(owners), np.int64)
        order[self.starts(load)[owners] + earlier] = np.arange(len(owners))
        return order


class AnyOrder(Plan):
    """Neither rows within a group nor slots within a sum are in the order of the input."""

    def sort(self, owners):
        return len(owners) - 1 - np.argsort(owners[::-1], kind="stable")

    def total(self, weights, back):
        return super().total(weights[:, ::-1], back[:, ::-1])


class Unrounded(Plan):
    """Returns the float32 sum and lets the caller round it."""

    def unpermute(self, rows, weights, experts, layout, x):
        return super().unpermute(rows, weights, experts, layout, wide(x))


class DeclaresNarrow(Plan):
    """Sums in x's dtype, and says so."""

    def total(self, weights, back):
        y = np.zeros((len(back), back.shape[2]), ml_dtypes.bfloat16)
        for slot in range(back.shape[1]):
            product = (weights[:, slot, None] * back[:, slot]).astype(y.dtype)
            y = (wide(y) + wide(product)).astype(y.dtype)
        return wide(y)


class OtherDtypes(Plan):
    """float64 and float16."""


_NARROW = dataclasses.replace(Numerics.of("bfloat16"), combine="bfloat16")


def _correct(kernel: type[Plan], **declared: Any) -> Implementation:
    fields: dict[str, Any] = {"capacity": True, "batch_invariant": True} | declared
    return numpy_implementation(f"plan, {kernel.__name__}", "plan", kernel(), **fields)


CORRECT: tuple[Implementation, ...] = (
    _correct(Plan),
    _correct(CountingSort),
    _correct(AnyOrder, stable=False, capacity=False),
    _correct(Unrounded),
    _correct(OtherDtypes, dtypes=("float64", "float16")),
    _correct(DeclaresNarrow, dtypes=("bfloat16",), numerics={"bfloat16": _NARROW}),
)
