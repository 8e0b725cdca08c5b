"""Checks of `plan`: laws between calls, on integers, so that they hold exactly in any order."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._combine_laws import (
    added,
    judge_added,
    judge_scaled,
    renamed_ids,
    scaled,
)
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._plan_cases import (
    EXPERTS,
    routed,
    where_token,
    whole_case,
)

# Any bijection of experts or slots will do; these have no fixed point but one.
_EXPERTS = (np.arange(EXPERTS) * 3 + 2) % EXPERTS
_SLOTS = [2, 0, 1]


def _same(case: Case, y: np.ndarray, expected: np.ndarray) -> Judgement:
    wide = expected.astype(np.float64)
    return equal(y.astype(np.float64), wide, where=where_token(case))


def _sizes(outputs: Outputs, name: str, expected: np.ndarray) -> Judgement:
    found = outputs[f"{name}.group_sizes"].astype(np.int64)
    return equal(found, expected, where=lambda place: f"group size of expert {place[0]}")


def _order(case: Case) -> np.ndarray:
    """Some order of the tokens, whatever their number: failing inputs are made smaller."""
    return np.random.default_rng(0).permutation(len(case.arrays["x"]))


def _shuffled(case: Case) -> dict[str, Case]:
    return {"shuffled": case.replace(**_rows(case, _order(case)))}


def _rows(case: Case, keep: Any) -> dict[str, np.ndarray]:
    return {name: case.arrays[name][keep] for name in ("x", "experts", "weights")}


def _judge_shuffled(case: Case, outputs: Outputs) -> Judgement:
    sizes = _sizes(outputs, "shuffled", outputs["group_sizes"])
    return all_of(sizes, _same(case, outputs["shuffled.y"], outputs["y"][_order(case)]))


def _halves(case: Case) -> dict[str, Case]:
    half = len(case.arrays["x"]) // 2
    return {
        "first": case.replace(**_rows(case, slice(None, half))),
        "second": case.replace(**_rows(case, slice(half, None))),
    }


def _judge_halves(case: Case, outputs: Outputs) -> Judgement:
    first, second = outputs["first.group_sizes"], outputs["second.group_sizes"]
    sizes = equal(
        first.astype(np.int64) + second,
        outputs["group_sizes"].astype(np.int64),
        where=lambda place: f"group sizes of expert {place[0]}",
    )
    joined = np.concatenate([outputs["first.y"], outputs["second.y"]])
    return all_of(sizes, _same(case, joined, outputs["y"]))


def _relabelled(case: Case) -> dict[str, Case]:
    scale = np.empty_like(case.arrays["scale"])
    scale[_EXPERTS] = case.arrays["scale"]
    return {"relabelled": case.replace(experts=renamed_ids(case, _EXPERTS), scale=scale)}


def _judge_relabelled(case: Case, outputs: Outputs) -> Judgement:
    sizes = np.empty(EXPERTS, np.int64)
    sizes[_EXPERTS] = outputs["group_sizes"]
    judged = _sizes(outputs, "relabelled", sizes)
    return all_of(judged, _same(case, outputs["relabelled.y"], outputs["y"]))


def _larger(case: Case) -> dict[str, Case]:
    scale, idle = case.arrays["scale"], np.full(1, np.nan, case.arrays["scale"].dtype)
    return {
        "after": case.replace(scale=np.concatenate([scale, idle])),
        "before": case.replace(
            scale=np.concatenate([idle, scale]),
            experts=renamed_ids(case, np.arange(1, EXPERTS + 1)),
        ),
    }


def _judge_larger(case: Case, outputs: Outputs) -> Judgement:
    sizes = outputs["group_sizes"].astype(np.int64)
    return all_of(
        _sizes(outputs, "after", np.append(sizes, 0)),
        _sizes(outputs, "before", np.append(0, sizes)),
        *(_same(case, outputs[f"{name}.y"], outputs["y"]) for name in ("after", "before")),
    )


def _slots(case: Case) -> dict[str, Case]:
    moved = {name: case.arrays[name][:, _SLOTS] for name in ("experts", "weights")}
    return {"moved": case.replace(**moved)}


def _judge_slots(case: Case, outputs: Outputs) -> Judgement:
    sizes = _sizes(outputs, "moved", outputs["group_sizes"])
    return all_of(sizes, _same(case, outputs["moved.y"], outputs["y"]))


def _merged(case: Case) -> dict[str, Case]:
    """The second slot's weight goes to the first, which names the same expert."""
    experts, weights = case.arrays["experts"].copy(), case.arrays["weights"].copy()
    experts[:, 1] = -1
    weights[:, 0] += weights[:, 1]
    return {"merged": case.replace(experts=experts, weights=weights)}


def _judge_merged(case: Case, outputs: Outputs) -> Judgement:
    return _same(case, outputs["merged.y"], outputs["y"])


def _mixed(rng, dtype, budget):
    ids = routed(rng, skew=1.5, repeats=True, empty=0.1)
    yield whole_case(rng, "integers, repeats, empty slots", dtype, ids)


def _pairs(rng, dtype, budget):
    ids = routed(rng)
    ids[:, 1] = ids[:, 0]
    yield whole_case(rng, "integers, two slots of one expert", dtype, ids)


def _signed(rng, dtype, budget):
    """Weights of both signs."""
    (case,) = _mixed(rng, dtype, budget)
    weights = rng.integers(-2, 3, case.arrays["weights"].shape).astype(dtype_of(dtype))
    yield case.replace(weights=weights)


def _law(number: int, statement: str, formula: str, related, judge, cases=_mixed) -> Check:
    return Check(
        id=f"PLN-{number:02d}",
        op="plan",
        statement=statement,
        formula=formula,
        kind="metamorphic",
        cases=cases,
        judge=judge,
        related=related,
    )


CHECKS = (
    _law(
        21,
        "Tokens in another order give the same tokens in that order.",
        "y(x[p], e[p], w[p]) = y[p]",
        _shuffled,
        _judge_shuffled,
    ),
    _law(
        22,
        "Two halves of a batch give what the whole gives.",
        "y(first) ++ y(second) = y; group sizes add",
        _halves,
        _judge_halves,
    ),
    _law(23, "It is linear in x.", "y(x + x') = y(x) + y(x')", added("x"), judge_added(_same)),
    _law(
        24,
        "It is linear in the weights.",
        "y(w + w') = y(w) + y(w')",
        added("weights"),
        judge_added(_same),
        _signed,
    ),
    _law(
        25,
        "A power of two passes through, in x and in the weights: nothing is too small to count.",
        "y(x / 2^20) = y(w / 2^20) = y / 2^20",
        scaled,
        judge_scaled(_same),
    ),
    _law(
        26,
        "Other names of the experts change nothing but the order of the groups.",
        "y(p(e), scale[p]) = y; group_sizes[p]",
        _relabelled,
        _judge_relabelled,
    ),
    _law(
        27,
        "One more expert that nobody names, before or after the others, changes nothing.",
        "y(e + 1) = y; group_sizes get a 0",
        _larger,
        _judge_larger,
    ),
    _law(
        28,
        "The slots of a token, with their weights, may come in any order.",
        "y(e[:,p], w[:,p]) = y",
        _slots,
        _judge_slots,
    ),
    _law(
        29,
        "Two slots of one expert weigh as much as one with the sum of their weights.",
        "y(e e', w w') = y(e -1, w+w' 0), e = e'",
        _merged,
        _judge_merged,
        _pairs,
    ),
)
