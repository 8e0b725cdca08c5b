"""Checks of `dispatch_combine`: skewed traffic, and what was sent."""

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._dispatch_combine_cases import (
    EXPERTS,
    RANKS,
    TOKENS,
    K,
    exchange_case,
    sent,
    spread,
    traffic,
    where_pair,
)
from moe_ref.conformance.suite._dispatch_combine_values import check, skewed

# Tokens that rank r sends to rank q: every row, column and diagonal is different.
ASYMMETRIC = np.array([[0, 10, 0, 0], [3, 0, 1, 5], [0, 2, 7, 0], [1, 0, 0, 4]])


def to_rank(rng, rank: int, k: int = K) -> np.ndarray:
    """All tokens to both experts of one rank; further slots are empty."""
    counts = np.zeros((RANKS, RANKS), int)
    counts[:, rank] = TOKENS
    return sent(rng, counts)


def _to_one(rng, dtype, budget):
    for rank in (0, RANKS - 1):
        label = f"all tokens to rank {rank}"
        yield exchange_case(rng, label, dtype, to_rank(rng, rank))
    ids = np.full((RANKS, TOKENS, 1), 4)
    yield exchange_case(rng, "all tokens to expert 4", dtype, ids)


def _one_pair(rng, dtype, budget):
    for source, goal in ((0, 3), (2, 1), (3, 3)):
        counts = np.zeros((RANKS, RANKS), int)
        counts[source, goal] = TOKENS
        label = f"rank {source} sends to rank {goal}, the others send nothing"
        yield exchange_case(rng, label, dtype, sent(rng, counts))


def asymmetric(rng, dtype, budget):
    """Different numbers of tokens for every pair of ranks."""
    yield exchange_case(rng, "different counts", dtype, sent(rng, ASYMMETRIC))
    yield exchange_case(rng, "different counts, transposed", dtype, sent(rng, ASYMMETRIC.T))


def _silent(rng, dtype, budget):
    ids = spread(rng, experts=EXPERTS - 2)
    ids[[0, 2]] = -1
    yield exchange_case(rng, "ranks 0 and 2 send nothing, rank 3 gets nothing", dtype, ids)
    ids = spread(rng, experts=EXPERTS - 2)
    ids = np.where(ids >= 0, ids + 2, ids)
    ids[3] = -1
    yield exchange_case(rng, "rank 3 sends nothing, rank 0 gets nothing", dtype, ids)


def _odd_ranks(rng, dtype, budget):
    for experts in (6, 2):
        ids = spread(rng, k=2, experts=experts)
        label = f"{experts} experts on {RANKS} ranks"
        yield exchange_case(rng, label, dtype, ids, experts=experts)
    for ranks in (3, 8):
        ids = spread(rng, ranks, 4, 3, 3 * ranks)
        once = budget == "smoke"
        yield exchange_case(rng, f"{ranks} ranks", dtype, ids, experts=3 * ranks, once=once)


def _many(rng, dtype, budget):
    if dtype != "float32":
        return
    ids = rng.integers(2, 4, (2, 300, 1))
    yield exchange_case(rng, "300 tokens of each rank to rank 1", dtype, ids, experts=4, d=2)
    ids = np.repeat(rng.permuted([[0, 1]] * 4, axis=1)[:, None], 11_000, axis=1)
    yield exchange_case(rng, "44000 tokens to rank 0", dtype, ids, d=2)


def _judge(name: str, of: str):
    def judge(case: Case, outputs: Outputs) -> Judgement:
        return equal(outputs[name], getattr(traffic(case), of), where=where_pair)

    return judge


def _counted(rng, dtype, budget):
    yield from skewed(rng, dtype, "smoke")
    yield from asymmetric(rng, dtype, budget)
    yield from _silent(rng, dtype, budget)


CHECKS: tuple[Check, ...] = (
    check(21, "All tokens may go to one rank, or to one expert.", _to_one),
    check(22, "One rank may send all its tokens to one other, and nobody else any.", _one_pair),
    check(
        23,
        "Every pair of ranks may exchange another number of tokens: offsets at the sender are "
        "not those at the receiver.",
        asymmetric,
    ),
    check(24, "Ranks may send nothing, or get nothing.", _silent),
    check(
        25,
        "Experts that ranks cannot share evenly, and 3 or 8 ranks, are refused, or computed.",
        _odd_ranks,
        may_refuse=True,
    ),
    check(26, "300 rows between two ranks, and 44000 to one, are counted.", _many),
    check(
        27,
        "`rows_sent` counts a token once for each rank it goes to.",
        _counted,
        _judge("rows_sent", "rows"),
        kind="exact",
        formula="rows[r,q] = #{t on r: some expert of t on q}",
        wants=("rows_sent",),
    ),
    check(
        28,
        "`copies_sent` counts every slot that is not empty.",
        _counted,
        _judge("copies_sent", "copies"),
        kind="exact",
        formula="copies[r,q] = #{(t,j), t on r: e[t,j] on q}",
        wants=("copies_sent",),
    ),
)
