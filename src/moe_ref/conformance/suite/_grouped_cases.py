"""Operands for the checks of `grouped_matmul`.

Few shapes, used by many checks: a kernel that is compiled for each shape compiles few times. No
shape depends on the seed.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from moe_ref import oracle
from moe_ref._counted import counted
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget
from moe_ref.conformance.suite._data import dtype_of, far_from_one, normal, zipf_sizes

Rng = np.random.Generator
Draw = Callable[[Rng, tuple[int, ...], str], np.ndarray]

# Around the edges of tiles, and a prime.
EDGES = (1, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 251)
# Groups of one base shape: 7 experts, 65 rows, one more than a tile of 64.
MIXED = (9, 0, 20, 4, 17, 1, 14)
ROWS = sum(MIXED)
EXPERTS = len(MIXED)
POISONED_EXPERTS = ((np.nan, 0), (np.nan, 1), (np.inf, 3), (-np.inf, 2), (np.nan, EXPERTS - 1))
# Groups large enough for a statistic of each expert, and some without rows.
LARGE = (64, 0, 96, 64, 0, 96, 64, 0)


def grouped_case(
    rng: Rng,
    label: str,
    dtype: str,
    sizes,
    *,
    k: int = 64,
    n: int = 48,
    tail: int = 0,
    scale: float = 1.0,
    draw: Draw | None = None,
) -> Case:
    """Random operands for the given group sizes.

    Args:
        rng: draws the numbers.
        label: what the case is about.
        dtype: of x and w.
        sizes: rows of each expert; int32 unless they have a dtype of their own.
        k: columns of x.
        n: columns of the result.
        tail: rows that belong to no group.
        scale: of x.
        draw: how to draw operands; None: normal ones, with results of the size of `scale`.

    Returns:
        The case, without a cotangent.
    """
    sizes = np.asarray(sizes) if isinstance(sizes, np.ndarray) else np.asarray(sizes, np.int32)
    rows = int(sizes.astype(np.int64).sum()) + tail
    if draw is None:
        x = normal(rng, (rows, k), dtype, scale)
        w = normal(rng, (len(sizes), k, n), dtype, k**-0.5)
    else:
        x, w = draw(rng, (rows, k), dtype), draw(rng, (len(sizes), k, n), dtype)
    return Case(label=label, arrays={"x": x, "w": w, "group_sizes": sizes})


def based(rng: Rng, label: str, dtype: str, sizes=MIXED, **options) -> Case:
    """Operands of the base shape: `sizes` of the first experts, and a tail up to `ROWS`."""
    sizes = (*sizes, *(0,) * (EXPERTS - len(sizes)))
    return grouped_case(rng, label, dtype, sizes, tail=ROWS - int(sum(sizes)), **options)


def with_cotangent(rng: Rng, case: Case) -> Case:
    """The case with a random cotangent, positive where every expert's weights have one sign."""
    shape = (len(case.arrays["x"]), case.arrays["w"].shape[2])
    negative = np.signbit(case.arrays["w"])
    one_sign = negative.all(axis=(1, 2)) | ~negative.any(axis=(1, 2))
    draw = _positive if one_sign.all() else normal
    return case.replace(cotangent=draw(rng, shape, case.dtype))


def skewed(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Zipf sizes."""
    for experts, rows, k, n in _SKEWED if budget == "smoke" else (*_SKEWED, (64, 1024, 64, 48)):
        sizes = zipf_sizes(rng, experts=experts, rows=rows)
        yield grouped_case(rng, f"Zipf over {experts} experts", dtype, sizes, k=k, n=n)
    yield large_group(rng, dtype)
    yield from long_sums(rng, dtype)


def large_group(rng: Rng, dtype: str) -> Case:
    """More than 5 tiles of 128 rows, 4 of columns and 3 of results, each with a rest."""
    return grouped_case(rng, "a group of 700 rows", dtype, [5, 0, 700, 130], k=520, n=392)


def long_sums(rng: Rng, dtype: str) -> Iterator[Case]:
    """More than 2048 terms in sums of results and of dx, 1024 in those of dw, and as many columns.

    All numbers are positive, so that a sum is heard in every precision of the accumulator.
    """
    for sizes, k, n in (((3, 0, 1056, 7), 2080, 16), ((5, 0, 11), 16, 2080)):
        label = f"a group of {sizes[2]} rows, k={k}, n={n}"
        case = grouped_case(rng, label, dtype, sizes, k=k, n=n, draw=_positive)
        yield dataclasses.replace(case, once=True)


def many(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """More experts than eight bits count, most of them idle."""
    sizes = rng.multinomial(100, [1 / 600] * 600).astype(np.int32)
    yield grouped_case(rng, "600 experts", dtype, sizes, k=16, n=16)


_SKEWED = ((len(LARGE), sum(LARGE), 64, 48), (len(EDGES), sum(EDGES), 72, 136))


def edges(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Groups of every size in `EDGES` at once, then every such k and n."""
    label = f"groups of {', '.join(map(str, EDGES))} rows, shuffled"
    sizes = rng.permutation(np.asarray(EDGES, np.int32))
    yield grouped_case(rng, label, dtype, sizes, k=72, n=136)
    yield grouped_case(rng, "one expert and a tail", dtype, [37], tail=3, k=16, n=16)
    # Kernels have other code for what tiles divide, and a square hides a transposition.
    yield grouped_case(rng, "whole tiles alone", dtype, [128, 0, 64, 192], k=128, n=128)
    if budget == "thorough":
        for rows in EDGES:
            yield grouped_case(
                rng, f"{counted(rows, 'row')} before 7", dtype, [rows, 7], k=32, n=16
            )
    for k, n in _PAIRS if budget == "smoke" else itertools.product(EDGES, EDGES):
        # A result with a single column, or a gradient, may be 0 by chance where signs are mixed.
        if 1 in (k, n):
            yield _one_sign_each(rng, f"k={k}, n={n}", dtype, k, n)
        else:
            yield grouped_case(rng, f"k={k}, n={n}", dtype, [5, 0, 11], k=k, n=n)


# Each of `EDGES` once, and 1 as either.
_PAIRS = ((1, 129), (128, 3), (31, 65), (63, 32), (33, 127), (251, 64), (2, 1))


def _one_sign_each(rng: Rng, label: str, dtype: str, k: int, n: int) -> Case:
    """Results and gradients of one sign for each expert: no sum cancels.

    Results are negative, gradients of x and of w for one expert each.
    """
    case = grouped_case(rng, label, dtype, [5, 0, 11], k=k, n=n, draw=_positive)
    case.arrays["w"][0] *= -1
    case.arrays["x"][owners(case) == 2] *= -1
    return case


def _positive(rng: Rng, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape).astype(dtype_of(dtype))


def wide_sizes(rng: Rng, dtype: str) -> Case:
    """Sizes of 64 bits."""
    sizes = np.array([200, 100], np.int64)
    case = grouped_case(rng, "int64 sizes", dtype, sizes, k=32, n=32)
    return dataclasses.replace(case, once=True)


def tiny(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Fewer rows than any tile has."""
    yield grouped_case(rng, "1 row", dtype, [0, 0, 1, 0, 0, 0, 0])
    yield grouped_case(rng, "3 rows", dtype, [0, 1, 0, 0, 0, 2, 0])
    yield grouped_case(rng, "5 rows, no two of an expert", dtype, [1, 0, 1, 1, 0, 1, 1])


def poisoned_tails(dtype: str) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """What unwritten memory may hold, NaN, Inf or a number whose square overflows, and sizes."""
    large = 6e4 if dtype == "float16" else 1e30
    some, nearly_all = (3, 0, 2), (40, 24)
    nans = tuple((np.nan, sizes) for sizes in (some, (5,), (), nearly_all))
    return (*nans, (np.inf, nearly_all), (large, some))


def poisoned_tail(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """NaN, Inf or large numbers in rows of x that belong to no group: some, or many tiles."""
    for poison, sizes in poisoned_tails(dtype):
        case = based(rng, f"{poison} in the tail, sizes {list(sizes)}", dtype, sizes)
        case.arrays["x"][~belongs(case)] = poison
        yield case
    sizes, label = [9, 0, 20, 4], "nan in a tail of 300 rows"
    case = grouped_case(rng, label, dtype, sizes, tail=300, k=16, n=16)
    case.arrays["x"][~belongs(case)] = np.nan
    yield dataclasses.replace(case, once=True)


def poisoned_expert(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """NaN or Inf in one expert's weight: along a row, or in one place, where Inf has a sign."""
    for poison, expert in POISONED_EXPERTS:
        case = based(rng, f"{poison} in expert {expert}", dtype)
        case.arrays["w"][expert, 1, :] = poison
        yield case
    for poison in (np.inf, -np.inf, np.nan):
        case = based(rng, f"{poison} in one place of expert 4", dtype)
        case.arrays["w"][4, 1, 5] = poison
        if np.isnan(poison):  # which a row of zeros does not hide
            case.arrays["x"][owners(case).searchsorted(4)] = 0
        yield case


def other_magnitudes(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """One operand of another magnitude, and results with it."""

    def make(label):
        return with_cotangent(rng, based(rng, label, dtype))

    yield from far_from_one(dtype, ("x", "w", "cotangent"), make)


def belongs(case: Case) -> np.ndarray:
    """Which rows belong to a group."""
    total = int(case.arrays["group_sizes"].astype(np.int64).sum())
    return np.arange(len(case.arrays["x"])) < total


def owners(case: Case) -> np.ndarray:
    """The expert of each row that belongs to a group."""
    sizes = case.arrays["group_sizes"].astype(np.int64)
    return np.repeat(np.arange(len(sizes)), sizes)


def where_row(case: Case) -> Callable[[tuple[int, ...]], str]:
    """Name an element of the result by row, expert and column."""
    ends = np.cumsum(case.arrays["group_sizes"].astype(np.int64))

    def name(place: tuple[int, ...]) -> str:
        expert = int(np.searchsorted(ends, place[0], side="right"))
        owner = f"expert {expert}" if expert < len(ends) else "the tail"
        return f"row {place[0]} of {owner}, column {place[1]}"

    return name


def where_weight(place: tuple[int, ...]) -> str:
    """Name an element of the gradient of w."""
    return f"dw of expert {place[0]}, element {place[1:]}"


def truth_of(case: Case) -> oracle.Value:
    """The result."""
    x, w, sizes = (case.arrays[name] for name in ("x", "w", "group_sizes"))
    return oracle.grouped_matmul(x, w, sizes, numerics=case.numerics)


def gradients_of(case: Case) -> oracle.GroupedGradients:
    """The gradients."""
    x, w, sizes, cotangent = (case.arrays[n] for n in ("x", "w", "group_sizes", "cotangent"))
    return oracle.grouped_matmul_vjp(x, w, sizes, cotangent, numerics=case.numerics)
