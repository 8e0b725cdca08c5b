"""Which rows an expert gets, in which order, and how many rows go from rank to rank."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._capacity import kept_slots
from moe_ref.spec import CapacitySpec


@dataclasses.dataclass(frozen=True)
class Permutation:
    """The kept slots sorted by expert, in token order within an expert.

    Args:
        tokens: [rows] token of each row.
        slots: [rows] which of its token's slots each row belongs to.
        group_sizes: [experts] rows of each expert; they follow one another.
        kept: [tokens, k] whether a slot has a row.
    """

    tokens: np.ndarray
    slots: np.ndarray
    group_sizes: np.ndarray
    kept: np.ndarray


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What an exchange sends: [source, destination]; the diagonal is what stays on a rank.

    Args:
        rows: a token once for each rank that holds one of its experts.
        copies: a token once for each of its slots that is not empty.
    """

    rows: np.ndarray
    copies: np.ndarray


def permutation(experts: Any, num_experts: int, *, capacity: int | None = None) -> Permutation:
    """Sort the slots by expert.

    Args:
        experts: [tokens, k] ids in [0, num_experts), -1 for an empty slot; an id may repeat.
        num_experts: number of experts.
        capacity: rows an expert accepts: all choices of token 0 are served, then of token 1, and so
            on; None drops nothing.

    Returns:
        The one stable order.

    Raises:
        ValueError: ids out of range.

    Example:
        ```python
        from moe_ref import oracle

        p = oracle.permutation([[1, 0], [1, -1], [1, 0]], 2, capacity=2)
        assert p.tokens.tolist() == [0, 2, 0, 1] and p.group_sizes.tolist() == [2, 2]
        assert p.kept.tolist() == [[True, True], [True, False], [False, True]]
        ```
    """
    ids = ids_of(experts, num_experts)
    limit = None if capacity is None else CapacitySpec(expert_capacity=int(capacity))
    kept = kept_slots(ids, num_experts, limit)
    tokens, slots = np.nonzero(kept)
    order = np.argsort(ids[tokens, slots], kind="stable")
    sizes = np.bincount(ids[kept], minlength=num_experts)
    return Permutation(tokens[order], slots[order], sizes, kept)


def traffic(experts: Any, num_experts: int) -> Traffic:
    """Count what goes from rank to rank.

    Args:
        experts: [ranks, tokens, k] ids, -1 for an empty slot. Expert e lives on rank
            e // (num_experts / ranks).
        num_experts: of all ranks; a multiple of their number.

    Returns:
        The exact counts.

    Raises:
        ValueError: ids out of range, or experts that the ranks cannot share evenly.

    Example:
        ```python
        from moe_ref import oracle

        sent = oracle.traffic([[[0, 1], [2, -1]], [[3, 3], [0, 3]]], 4)
        assert sent.rows.tolist() == [[1, 1], [1, 2]]
        assert sent.copies.tolist() == [[2, 1], [1, 3]]
        ```
    """
    ids = np.asarray(experts)
    require(ids.ndim == 3, "experts", "of shape [ranks, tokens, k]", f"shape {ids.shape}")
    ranks = len(ids)
    require(num_experts % ranks == 0, "num_experts", f"a multiple of {ranks} ranks", num_experts)
    home = np.where(ids >= 0, ids // (num_experts // ranks), -1)
    for source in range(ranks):
        ids_of(ids[source], num_experts)
    there = home[..., None] == np.arange(ranks)
    return Traffic(rows=there.any(axis=2).sum(axis=1), copies=there.sum(axis=(1, 2)))


def ids_of(experts: Any, num_experts: int) -> np.ndarray:
    """Ids as [tokens, k] int64.

    Raises:
        ValueError: no integers, another number of axes, or ids outside [-1, num_experts).
    """
    ids = np.asarray(experts)
    require(ids.ndim == 2, "experts", "of shape [tokens, k]", f"shape {ids.shape}")
    whole = ids.dtype.kind in "iu" or ids.size == 0
    require(whole, "experts", "integers", ids.dtype)
    ids = ids.astype(np.int64)
    inside = (ids >= -1) & (ids < num_experts)
    require(bool(inside.all()), "experts", f"in [-1, experts={num_experts})", ids[~inside][:1])
    return ids
