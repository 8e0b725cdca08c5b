"""Routed tokens for the checks of `plan` and of `dispatch_combine`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._draw import routing
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.spec import Numerics

TOKENS, K, EXPERTS, D = 48, 3, 8, 8  # most cases share a shape: a kernel compiles once for it
# Two blocks of 256 tokens, of 256 experts and of 8 slots; nothing is a whole tile.
LARGE_TOKENS, LARGE_K, LARGE_EXPERTS, LARGE_D = 301, 11, 300, 136

ROUTINGS: dict[str, dict[str, Any]] = {
    "Zipf": {"skew": 1.2},
    "uniform, empty slots": {"skew": 0.0, "empty": 0.2},
    "Zipf, repeats, empty slots": {"repeats": True, "empty": 0.1},
}


def factors(rng: np.random.Generator, experts: int) -> np.ndarray:
    """Powers of two with signs, different for up to 16 experts: multiplying rounds nothing."""
    half = -(-min(experts, 16) // 2)
    levels = 2.0 ** (np.arange(half) - half // 2)
    every = np.resize(np.concatenate([levels, -levels]), experts)
    return rng.permutation(every)


def whole_factors(rng: np.random.Generator, experts: int) -> np.ndarray:
    """Different small integers for up to 8 experts."""
    return rng.permutation(np.resize([1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0], experts))


def routed(
    rng: np.random.Generator,
    tokens: int = TOKENS,
    k: int = K,
    experts: int = EXPERTS,
    *,
    skew: float = 1.0,
    repeats: bool = False,
    empty: float = 0.0,
) -> np.ndarray:
    """Expert ids with Zipf popularity; see `strategies.routings`."""
    seed = int(rng.integers(2**32))
    return routing(tokens, k, experts, skew, 0, repeats, empty, seed)


def audible_weights(rng: np.random.Generator, ids: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Weights in +-[1/4, 1] with which the terms of a token have one sign.

    Where terms cancel, what is left may be below the bound, and then nothing can be told.
    """
    signs = np.sign(scale)[ids] * rng.choice([-1.0, 1.0], (*ids.shape[:-1], 1))
    return signs * rng.uniform(0.25, 1.0, ids.shape)


def plan_case(
    rng: np.random.Generator,
    label: str,
    dtype: str,
    ids: np.ndarray,
    *,
    experts: int = EXPERTS,
    d: int = D,
    cotangent: bool = False,
    once: bool = False,
    **more: np.ndarray,
) -> Case:
    """Random tokens and weights for given ids."""
    scale = factors(rng, experts)
    arrays = {
        "x": normal(rng, (len(ids), d), dtype),
        "experts": ids.astype(np.int32),
        "weights": audible_weights(rng, ids, scale).astype(dtype_of(dtype)),
        "scale": scale.astype(dtype_of(dtype)),
    }
    if cotangent:
        arrays["cotangent"] = cotangent_of(rng, arrays["x"])
    return Case(label=label, arrays=arrays | more, once=once)


def large_case(rng: np.random.Generator, dtype: str, **more: Any) -> Case:
    """The same with more of everything."""
    ids = routed(rng, LARGE_TOKENS, LARGE_K, LARGE_EXPERTS, skew=0.8, empty=0.1)
    label = f"{LARGE_K} of {LARGE_EXPERTS} experts, {LARGE_D} columns"
    return plan_case(rng, label, dtype, ids, experts=LARGE_EXPERTS, d=LARGE_D, **more)


def cotangent_of(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Normal numbers with the signs of a token's x, or with the opposite ones.

    The gradient of a token's weights is a multiple of the product of both: were their signs
    independent, one of many tokens would by chance get less than its bound.
    """
    drawn = normal(rng, x.shape, str(x.dtype))
    return np.copysign(drawn, x) * rng.choice([-1, 1], (*x.shape[:-1], 1)).astype(x.dtype)


def whole_case(
    rng: np.random.Generator,
    label: str,
    dtype: str,
    ids: np.ndarray,
    *,
    experts: int = EXPERTS,
    cotangent: bool = False,
) -> Case:
    """Small integers: their sums and products are exact in every dtype and order."""
    kind = dtype_of(dtype)
    arrays = {
        "x": rng.integers(-4, 5, (len(ids), D)).astype(kind),
        "experts": ids.astype(np.int32),
        "weights": rng.integers(1, 3, ids.shape).astype(kind),
        "scale": whole_factors(rng, experts).astype(kind),
    }
    if cotangent:
        arrays["cotangent"] = rng.integers(-2, 3, (len(ids), D)).astype(kind)
    return Case(label=label, arrays=arrays)


def zeroed(case: Case) -> Case:
    """The case with weights of 0 in filled slots, and a factor of 0 of the busiest expert.

    What is multiplied with 0 has a gradient all the same. Slots are of different experts, so that
    one at least of each token counts.
    """
    weights, scale = case.arrays["weights"].copy(), case.arrays["scale"].copy()
    weights[..., ::2, 1] = 0
    scale[np.bincount(case.arrays["experts"].reshape(-1)).argmax()] = 0
    label = f"{case.label}, weights and a factor of 0"
    return dataclasses.replace(case.replace(weights=weights, scale=scale), label=label)


def large_terms(
    rng: np.random.Generator, tokens: int, experts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids of all experts, and one term of 256 among ones: first, last or anywhere."""
    ids = np.stack([rng.permutation(experts) for _ in range(tokens)])
    at = rng.integers(0, experts, tokens)
    at[: tokens // 4], at[tokens // 4 : tokens // 2] = 0, experts - 1
    terms = np.ones(ids.shape)
    terms[np.arange(tokens), at] = 256
    return ids, terms


def numerics_of(case: Case) -> Numerics:
    """What is declared; the call itself rounds the rows that come back to the dtype of x."""
    declared = case.numerics or Numerics.of(case.dtype)
    return dataclasses.replace(declared, expert_output=case.dtype)


def _arguments(case: Case) -> dict[str, Any]:
    given = {name: case.arrays[name] for name in ("x", "experts", "weights", "scale")}
    return given | {"capacity": capacity_of(case), "numerics": numerics_of(case)}


def capacity_of(case: Case) -> int | None:
    """Rows an expert accepts; None: any number."""
    return int(case.arrays["capacity"]) if case.has("capacity") else None


def truth(case: Case) -> oracle.Value:
    """The result."""
    return oracle.combine(**_arguments(case))


def gradients(case: Case) -> oracle.CombineGradients:
    """The gradients."""
    return oracle.combine_vjp(**_arguments(case), cotangent=case.arrays["cotangent"])


def order(case: Case) -> oracle.Permutation:
    """Who gets which row."""
    experts = len(case.arrays["scale"])
    return oracle.permutation(case.arrays["experts"], experts, capacity=capacity_of(case))


def where_token(case: Case) -> Callable[[tuple[int, ...]], str]:
    """Name an element of the result by token, column and the token's experts."""

    def name(place: tuple[int, ...]) -> str:
        ids = case.arrays["experts"][place[0]].tolist()
        return f"token {place[0]} of experts {ids}, element {place[1]}"

    return name
