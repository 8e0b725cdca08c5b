"""Checks of `dispatch_combine`: laws between calls, on integers, so that they hold exactly."""

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._combine_laws import (
    Related,
    added,
    judge_added,
    judge_scaled,
    renamed_ids,
    scaled,
)
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._dispatch_combine_cases import (
    EXPERTS,
    OWN,
    RANKS,
    flat,
    spread,
    where_pair,
    where_token,
    whole_case,
)

_ROWS = ("x", "experts", "weights")
_EXPERTS = (np.arange(EXPERTS) * 3 + 2) % EXPERTS
_RANKS = np.array([2, 0, 3, 1])
_SLOTS = [2, 0, 1]


def _same(case: Case, y: np.ndarray, expected: np.ndarray) -> Judgement:
    found, wanted = (flat(a).astype(np.float64) for a in (y, expected))
    return equal(found, wanted, where=where_token(case))


def _renamed(case: Case, renamed: np.ndarray, experts: int = EXPERTS) -> Case:
    """Expert e is called renamed[e]; names that nobody has belong to experts of NaN."""
    scale = np.full(experts, np.nan, case.arrays["scale"].dtype)
    scale[renamed] = case.arrays["scale"]
    return case.replace(experts=renamed_ids(case, renamed), scale=scale)


def _ranks_moved(case: Case) -> dict[str, Case]:
    """Rank r becomes what rank _RANKS[r] was, its experts included."""
    now = np.argsort(_RANKS)
    experts = np.arange(EXPERTS)
    moved = _renamed(case, now[experts // OWN] * OWN + experts % OWN)
    return {"moved": moved.replace(**{n: moved.arrays[n][_RANKS] for n in _ROWS})}


def _judge_ranks_moved(case: Case, outputs: Outputs) -> Judgement:
    judged = [_same(case, outputs["moved.y"], outputs["y"][_RANKS])]
    for name in ("rows_sent", "copies_sent"):
        if name in outputs:
            there = outputs[name][np.ix_(_RANKS, _RANKS)]
            judged.append(equal(outputs[f"moved.{name}"], there, where=where_pair))
    return all_of(*judged)


def _order(case: Case) -> np.ndarray:
    """Some order of the tokens of all ranks, whatever their number."""
    return np.random.default_rng(0).permutation(len(flat(case.arrays["x"])))


def _shuffled(case: Case) -> dict[str, Case]:
    order = _order(case)
    arrays = {n: flat(case.arrays[n])[order].reshape(case.arrays[n].shape) for n in _ROWS}
    return {"shuffled": case.replace(**arrays)}


def _judge_shuffled(case: Case, outputs: Outputs) -> Judgement:
    return _same(case, outputs["shuffled.y"], flat(outputs["y"])[_order(case)])


def on_ranks(case: Case, ranks: int) -> Case:
    """The same tokens on another number of ranks."""
    names = [n for n in (*_ROWS, "cotangent") if case.has(n)]
    arrays = {n: case.arrays[n] for n in names}
    return case.replace(**{n: a.reshape(ranks, -1, a.shape[2]) for n, a in arrays.items()})


def fewer_ranks(case: Case) -> dict[str, Case]:
    """The same tokens on one and on two ranks."""
    return {"one": on_ranks(case, 1), "two": on_ranks(case, 2)}


def _judge_fewer(case: Case, outputs: Outputs) -> Judgement:
    return all_of(*(_same(case, outputs[f"{name}.y"], outputs["y"]) for name in ("one", "two")))


def _relabelled(case: Case) -> dict[str, Case]:
    return {"other": _renamed(case, _EXPERTS)}


def _larger(case: Case) -> dict[str, Case]:
    """One more expert on every rank, the last or the first of it."""
    experts = np.arange(EXPERTS)
    last = experts // OWN * (OWN + 1) + experts % OWN
    larger = EXPERTS + RANKS
    return {"other": _renamed(case, last, larger), "first": _renamed(case, last + 1, larger)}


def _slots(case: Case) -> dict[str, Case]:
    moved = {n: case.arrays[n][..., _SLOTS] for n in ("experts", "weights")}
    return {"other": case.replace(**moved)}


def _merged(case: Case) -> dict[str, Case]:
    """The second slot's weight goes to the first, which names the same expert."""
    experts, weights = case.arrays["experts"].copy(), case.arrays["weights"].copy()
    experts[..., 1] = -1
    weights[..., 0] += weights[..., 1]
    return {"other": case.replace(experts=experts, weights=weights)}


def _judge_same(case: Case, outputs: Outputs) -> Judgement:
    results = [v for n, v in outputs.items() if n != "y" and n.endswith(".y")]
    return all_of(*(_same(case, y, outputs["y"]) for y in results))


def mixed(rng, dtype, budget):
    """Repeats and empty slots."""
    ids = spread(rng, skew=1.5, repeats=True, empty=0.1)
    yield whole_case(rng, "integers, repeats, empty slots", dtype, ids)


def _pairs(rng, dtype, budget):
    ids = spread(rng)
    ids[..., 1] = ids[..., 0]
    yield whole_case(rng, "integers, two slots of one expert", dtype, ids)


def _signed(rng, dtype, budget):
    (case,) = mixed(rng, dtype, budget)
    weights = rng.integers(-2, 3, case.arrays["weights"].shape).astype(dtype_of(dtype))
    yield case.replace(weights=weights)


def _law(
    number: int, statement: str, formula: str, related: Related, judge=_judge_same, cases=mixed
) -> Check:
    return Check(
        id=f"EXC-{number:02d}",
        op="dispatch_combine",
        statement=statement,
        formula=formula,
        kind="metamorphic",
        cases=cases,
        judge=judge,
        related=related,
    )


CHECKS = (
    _law(
        31,
        "Ranks may change places, their experts with them, and so does the traffic.",
        "y(p(ranks)) = y[p]; sent[p,p]",
        _ranks_moved,
        _judge_ranks_moved,
    ),
    _law(
        32,
        "A token may start on any rank.",
        "y(x[p], e[p], w[p]) = y[p], p over the tokens of all ranks",
        _shuffled,
        _judge_shuffled,
    ),
    _law(
        33,
        "One, two and four ranks give the same result.",
        "y on 1 rank = y on 2 = y on 4",
        fewer_ranks,
        _judge_fewer,
    ),
    _law(34, "It is linear in x.", "y(x + x') = y(x) + y(x')", added("x"), judge_added(_same)),
    _law(
        35,
        "It is linear in the weights.",
        "y(w + w') = y(w) + y(w')",
        added("weights"),
        judge_added(_same),
        _signed,
    ),
    _law(
        36,
        "A power of two passes through, in x and in the weights: nothing is too small to count.",
        "y(x / 2^20) = y(w / 2^20) = y / 2^20",
        scaled,
        judge_scaled(_same),
    ),
    _law(
        37,
        "Experts may have other names, and live on other ranks.",
        "y(p(e), scale[p]) = y",
        _relabelled,
    ),
    _law(
        38,
        "One more expert on every rank, which nobody names, changes nothing.",
        "y with experts / ranks + 1 on each rank = y",
        _larger,
    ),
    _law(
        39,
        "The slots of a token, with their weights, may come in any order.",
        "y(e[:,p], w[:,p]) = y",
        _slots,
    ),
    _law(
        40,
        "Two slots of one expert weigh as much as one with the sum of their weights.",
        "y(e e', w w') = y(e -1, w+w' 0), e = e'",
        _merged,
        _judge_same,
        _pairs,
    ),
)
