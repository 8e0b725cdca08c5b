"""Laws of a weighted sum over slots that hold with ranks and without."""

from collections.abc import Callable

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs

Related = Callable[[Case], dict[str, Case]]
Judge = Callable[[Case, Outputs], Judgement]
Same = Callable[[Case, np.ndarray, np.ndarray], Judgement]


def renamed_ids(case: Case, renamed: np.ndarray) -> np.ndarray:
    """Expert ids where expert e is called renamed[e]; empty slots stay so."""
    ids = case.arrays["experts"]
    return np.where(ids >= 0, renamed[ids], -1).astype(ids.dtype)


def added(name: str) -> Related:
    """Another array of integers like the one called `name`, and the sum of both."""

    def related(case: Case) -> dict[str, Case]:
        other = np.roll(case.arrays[name][..., ::-1], 1, axis=-2)
        return {
            "other": case.replace(**{name: other}),
            "sum": case.replace(**{name: case.arrays[name] + other}),
        }

    return related


def judge_added(same: Same) -> Judge:
    """The result of the sum is the sum of the results."""

    def judge(case: Case, outputs: Outputs) -> Judgement:
        parts = outputs["y"].astype(np.float64) + outputs["other.y"].astype(np.float64)
        return same(case, outputs["sum.y"], parts)

    return judge


def scaled(case: Case) -> dict[str, Case]:
    """x, and the weights, times a small power of two."""
    small = np.asarray(2.0 ** _exponent(case)).astype(case.arrays["x"].dtype)
    return {name: case.replace(**{name: case.arrays[name] * small}) for name in ("x", "weights")}


def judge_scaled(same: Same) -> Judge:
    """The result is that power of two times what it was."""

    def judge(case: Case, outputs: Outputs) -> Judgement:
        expected = outputs["y"].astype(np.float64) * 2.0 ** _exponent(case)
        return all_of(*(same(case, outputs[f"{name}.y"], expected) for name in ("x", "weights")))

    return judge


def _exponent(case: Case) -> int:
    return -4 if case.dtype == "float16" else -20
