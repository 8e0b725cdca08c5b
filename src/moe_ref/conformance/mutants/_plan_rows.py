"""Wrong `plan`s: rows in the wrong place, too many, or too few."""

from typing import Any

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._plan_kernel import Plan, wide


def of_plan(kernel: type[Plan], *killers: str, seen: str = "", **declared: Any) -> Mutant:
    """A mutant called after its class, whose docstring is its fault."""
    name = f"plan, {kernel.__name__}"
    return Mutant(
        implementation=numpy_implementation(name, "plan", kernel(), **declared),
        fault=kernel.__doc__ or "",
        killers=killers,
        seen=seen,
    )


class SlotMajor(Plan):
    """Rows are sorted by slot before token: every first choice, then every second."""

    def service(self, owner):
        return np.arange(owner.size).reshape(owner.shape).T.reshape(-1)


class Unstable(Plan):
    """The sort is not stable, though the plan says so: last tokens come first."""

    def sort(self, owners):
        return len(owners) - 1 - np.argsort(owners[::-1], kind="stable")


class Wraps(Plan):
    """-1 indexes the last expert: an empty slot becomes a row of it."""

    def owner(self, experts, num_experts):
        return experts % num_experts


class CountsEmpty(Plan):
    """Empty slots are counted as the last expert's, though they have no row."""

    def counts(self, owners, num_experts):
        sizes = super().counts(owners, num_experts)
        sizes[-1] += self._empty
        return sizes

    def owner(self, experts, num_experts):
        self._empty = int((experts < 0).sum())
        return experts


class FirstExpertIsNobody(Plan):
    """Expert 0 is read as an empty slot."""

    def owner(self, experts, num_experts):
        return np.where(experts > 0, experts, -1)


class LastExpertIsLost(Plan):
    """Boundaries are those of one expert fewer: the last expert gets no rows."""

    def owner(self, experts, num_experts):
        last = max(num_experts - 1, 1)
        return np.where(experts < last, experts, -1)


class IdleShifts(Plan):
    """Only experts with rows have a group: sizes close up over idle ones."""

    def counts(self, owners, num_experts):
        sizes = super().counts(owners, num_experts)
        used = sizes[sizes > 0]
        return np.pad(used, (0, num_experts - len(used)))


class CountsOnce(Plan):
    """An expert that a token names twice gets one row, and only the first weight."""

    def owner(self, experts, num_experts):
        first = (experts[:, :, None] == experts[:, None, :]).argmax(axis=2)
        return np.where(first == np.arange(experts.shape[1]), experts, -1)


class PadsGroups(Plan):
    """Group sizes count the rows that pad each group to a multiple of four."""

    def counts(self, owners, num_experts):
        return -(-super().counts(owners, num_experts) // 4) * 4


class WholeTiles(Plan):
    """Tokens past the last whole tile of 16 are left out."""

    def owner(self, experts, num_experts):
        whole = len(experts) // 16 * 16
        return np.where((np.arange(len(experts)) < whole)[:, None], experts, -1)


class ShortOffsets(Plan):
    """Row offsets are 16-bit integers, which wrap."""

    def starts(self, load):
        return super().starts(load).astype(np.int16).astype(np.int64)


class ByteSizes(Plan):
    """Group sizes are bytes."""

    def counts(self, owners, num_experts):
        return super().counts(owners, num_experts).astype(np.uint8)


class DropsSilently(Plan):
    """An expert takes twice its fair share at most, though no capacity was asked for."""

    def owner(self, experts, num_experts):
        room = -(-2 * experts.size // num_experts)
        flat, taken = experts.reshape(-1).copy(), np.zeros(num_experts, int)
        for slot, expert in enumerate(flat):
            if expert >= 0:
                taken[expert] += 1
                flat[slot] = expert if taken[expert] <= room else -1
        return flat.reshape(experts.shape)


class NeedsTokens(Plan):
    """No tokens are an error."""

    def permute(self, x, layout):
        if not len(x):
            raise ValueError("cannot take the maximum of no rows")
        return super().permute(x, layout)


class NarrowRows(Plan):
    """Rows travel in eight bits with one factor a row, undeclared."""

    def permute(self, x, layout):
        wide_x = wide(x)
        step = np.abs(wide_x).max(axis=1, initial=0, keepdims=True) / 127
        step = np.where(step > 0, step, 1)
        return super().permute((np.rint(wide_x / step) * step).astype(x.dtype), layout)


class WidensRows(Plan):
    """Rows are returned in float32, twice the size."""

    def permute(self, x, layout):
        return super().permute(wide(x), layout)


class FlushesRows(Plan):
    """Subnormal numbers become 0 on their way."""

    def permute(self, x, layout):
        small = np.abs(wide(x)) < ml_dtypes.finfo(x.dtype).smallest_normal
        return super().permute(
            np.where(small, np.copysign(0, wide(x)), wide(x)).astype(x.dtype), layout
        )


class AddsZero(Plan):
    """Rows are added to zeros, where -0 becomes 0."""

    def permute(self, x, layout):
        return super().permute(x + np.zeros_like(x), layout)


class ManyColumns(Plan):
    """Columns past the 64th are lost."""

    def permute(self, x, layout):
        rows = super().permute(x, layout)
        rows[:, 64:] = 0
        return rows


class SixBitsOfExpert(Plan):
    """The number of an expert has six bits."""

    def owner(self, experts, num_experts):
        return np.where(experts >= 0, experts % 64, experts)


class EightSlots(Plan):
    """A token gets no more than eight rows back."""

    def total(self, weights, back):
        return super().total(weights[:, :8], back[:, :8])


MUTANTS: tuple[Mutant, ...] = (
    of_plan(SlotMajor, "PLN-03"),
    of_plan(Unstable, "PLN-03"),
    of_plan(Wraps, "PLN-01", "PLN-07", "PLN-08", seen="vllm-project/vllm#46408"),
    of_plan(CountsEmpty, "PLN-01", "PLN-07", "PLN-27", seen="jax-ml/jax#38232"),
    of_plan(FirstExpertIsNobody, "PLN-02", "PLN-10", "PLN-26", "PLN-27"),
    of_plan(LastExpertIsLost, "PLN-02", "PLN-10", "PLN-11", "PLN-27"),
    of_plan(IdleShifts, "PLN-11", "PLN-27"),
    of_plan(CountsOnce, "PLN-01", "PLN-09", "PLN-29"),
    of_plan(PadsGroups, "PLN-01", "PLN-11"),
    of_plan(WholeTiles, "PLN-12"),
    of_plan(ShortOffsets, "PLN-15", seen="vllm-project/vllm#34279"),
    of_plan(ByteSizes, "PLN-15", seen="jax-ml/jax#18440"),
    of_plan(DropsSilently, "PLN-10", "PLN-21", "PLN-22"),
    of_plan(NeedsTokens, "PLN-13", seen="NVIDIA/Megatron-LM#3626"),
    of_plan(NarrowRows, "PLN-02", "PLN-04", "PLN-23"),
    of_plan(WidensRows, "PLN-02"),
    of_plan(FlushesRows, "PLN-02"),
    of_plan(AddsZero, "PLN-02"),
    of_plan(ManyColumns, "PLN-02"),
    of_plan(SixBitsOfExpert, "PLN-02"),
    of_plan(EightSlots, "PLN-04"),
)
