"""Routed tokens on several ranks for the checks of `dispatch_combine`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.conformance.suite._plan_cases import (
    audible_weights,
    cotangent_of,
    factors,
    routed,
    whole_factors,
)

RANKS, TOKENS, K, EXPERTS, D = 4, 12, 3, 8, 8  # shared by most cases
# More than 256 tokens and experts in all, slots in two blocks of eight; nothing is a whole tile.
LARGE_TOKENS, LARGE_K, LARGE_EXPERTS, LARGE_D = 71, 11, 300, 136
OWN = EXPERTS // RANKS  # experts of a rank


def spread(
    rng: np.random.Generator,
    ranks: int = RANKS,
    tokens: int = TOKENS,
    k: int = K,
    experts: int = EXPERTS,
    **options: Any,
) -> np.ndarray:
    """Ids [ranks, tokens, k] with Zipf popularity; see `strategies.routings`."""
    return routed(rng, ranks * tokens, k, experts, **options).reshape(ranks, tokens, k)


def sent(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """Ids for which rank r sends counts[r, q] of its tokens to rank q, and the others nowhere.

    Every other token goes to both experts of its rank.
    """
    ids = np.full((RANKS, TOKENS, K), -1)
    for source in range(RANKS):
        goals = np.repeat(np.arange(RANKS), counts[source])
        for token, goal in zip(rng.permutation(TOKENS), goals, strict=False):
            pair = goal * OWN + rng.permutation(OWN)
            ids[source, token, : 1 + token % 2] = pair[: 1 + token % 2]
    return ids


def _scale_dtype(dtype: str) -> np.dtype:
    """What the experts multiply with is as wide as what they compute in."""
    return dtype_of("float64" if dtype == "float64" else "float32")


def exchange_case(
    rng: np.random.Generator,
    label: str,
    dtype: str,
    ids: np.ndarray,
    *,
    experts: int = EXPERTS,
    d: int = D,
    cotangent: bool = False,
    once: bool = False,
) -> Case:
    """Random tokens and weights for given ids."""
    scale = factors(rng, experts)
    shape = (*ids.shape[:2], d)
    arrays = {
        "x": normal(rng, shape, dtype),
        "experts": ids.astype(np.int32),
        "weights": audible_weights(rng, ids, scale).astype(dtype_of(dtype)),
        "scale": scale.astype(_scale_dtype(dtype)),
    }
    if cotangent:
        arrays["cotangent"] = cotangent_of(rng, arrays["x"])
    return Case(label=label, arrays=arrays, once=once)


def large_case(rng: np.random.Generator, dtype: str, **more: Any) -> Case:
    """The same with more of everything."""
    ids = spread(rng, RANKS, LARGE_TOKENS, LARGE_K, LARGE_EXPERTS, skew=0.8, empty=0.1)
    label = f"{LARGE_K} of {LARGE_EXPERTS} experts, {LARGE_D} columns"
    return exchange_case(rng, label, dtype, ids, experts=LARGE_EXPERTS, d=LARGE_D, **more)


def whole_case(
    rng: np.random.Generator, label: str, dtype: str, ids: np.ndarray, *, cotangent: bool = False
) -> Case:
    """Small integers: what tokens and weights get is exact in every dtype and order."""
    kind, shape = dtype_of(dtype), (*ids.shape[:2], D)
    arrays = {
        "x": rng.integers(-4, 5, shape).astype(kind),
        "experts": ids.astype(np.int32),
        "weights": rng.integers(1, 3, ids.shape).astype(kind),
        "scale": whole_factors(rng, EXPERTS).astype(_scale_dtype(dtype)),
    }
    if cotangent:
        arrays["cotangent"] = rng.integers(-2, 3, shape).astype(kind)
    return Case(label=label, arrays=arrays)


def flat(array: np.ndarray) -> np.ndarray:
    """One row a token, of all ranks."""
    return array.reshape(-1, array.shape[-1])


def _arguments(case: Case) -> dict[str, Any]:
    given = {name: flat(case.arrays[name]) for name in ("x", "experts", "weights")}
    return given | {"scale": case.arrays["scale"], "numerics": case.numerics}


def truth(case: Case) -> oracle.Value:
    """The result, one row a token."""
    return oracle.combine(**_arguments(case))


def gradients(case: Case) -> oracle.CombineGradients:
    """The gradients, one row a token."""
    return oracle.combine_vjp(**_arguments(case), cotangent=flat(case.arrays["cotangent"]))


def traffic(case: Case) -> oracle.Traffic:
    """What goes from rank to rank."""
    return oracle.traffic(case.arrays["experts"], len(case.arrays["scale"]))


def where_token(case: Case) -> Callable[[tuple[int, ...]], str]:
    """Name an element of a row by rank, token and the ranks its experts are on."""
    tokens = case.arrays["x"].shape[1]
    own = max(len(case.arrays["scale"]) // len(case.arrays["x"]), 1)

    def name(place: tuple[int, ...]) -> str:
        rank, token = divmod(place[0], tokens)
        ids = case.arrays["experts"][rank, token].tolist()
        homes = [e // own if e >= 0 else "-" for e in ids]
        said = f"rank {rank}, token {token}, experts {ids} on ranks {homes}"
        return f"{said}, element {place[1]}" if len(place) > 1 else said

    return name


def where_pair(place: tuple[int, ...]) -> str:
    """Name an element of a count by source and destination."""
    return f"from rank {place[0]} to rank {place[1]}"
