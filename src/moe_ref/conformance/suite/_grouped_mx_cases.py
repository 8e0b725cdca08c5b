"""Operands for the checks of `grouped_matmul_mx`.

Factors of powers of two differ between rows, blocks and experts, and what one operand gains the
other loses, so that every block is heard in the sum. No shape depends on the seed.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget
from moe_ref.conformance.suite._data import normal, one_expert_sizes
from moe_ref.conformance.suite._data_mx import blocks, by_block, powers, span, stepped, tiny
from moe_ref.conformance.suite._grouped_cases import belongs
from moe_ref.conformance.suite._quantize_data import BLOCK
from moe_ref.spec import MXSpec

Rng = np.random.Generator
Draw = Callable[[Rng, str, Budget], Iterator[Case]]

# Groups of no row, of one, of one block exactly and with a rest; the last one ends in the tail.
MIXED = (9, 0, 40, 33, 1, 32, 17)
ROWS, TAIL, EXPERTS, K, N = 136, 4, 7, 96, 64
_OUTER = 100  # so that tiny operands have results of ordinary size


def operands(
    rng: Rng, label: str, dtype: str, sizes=MIXED, *, tail: int = TAIL, k: int = K, n: int = N
) -> Case:
    """Normal operands and a normal cotangent."""
    rows = int(np.sum(sizes)) + tail
    arrays = {
        "x": normal(rng, (rows, k), dtype),
        "w": normal(rng, (len(sizes), k, n), dtype, k**-0.5),
        "group_sizes": np.asarray(sizes, np.int32),
        "cotangent": normal(rng, (rows, n), dtype),
    }
    # Blocks are the same for every dtype: other shapes are compiled for the first of them.
    return Case(label=label, arrays=arrays, once=(rows, k, n) != (ROWS, K, N))


def scaled(case: Case, label: str, **factors: np.ndarray | float) -> Case:
    """The case with factors, powers of two that broadcast, on its operands."""
    arrays = {
        name: (case.arrays[name].astype(np.float64) * factor).astype(case.arrays[name].dtype)
        for name, factor in factors.items()
    }
    return dataclasses.replace(case.replace(**arrays), label=label)


def wide_blocks(rng: Rng, case: Case) -> Case:
    """Rows, blocks and experts of other sizes; blocks of two operands balance."""
    experts, k, n = case.arrays["w"].shape
    dtype, rows = case.dtype, len(case.arrays["x"])
    along_k = by_block(powers(rng, blocks(k), dtype), k)
    along_n = by_block(powers(rng, blocks(n), dtype), n)
    own = powers(rng, (experts, 1, 1), dtype)
    return scaled(
        case,
        f"{case.label}, rows, blocks and experts of other sizes",
        x=powers(rng, (rows, 1), dtype) * along_k,
        w=own / along_k[:, None] * along_n,
        cotangent=powers(rng, (rows, 1), dtype) / along_n,
    )


def wide_groups(rng: Rng, case: Case) -> Case:
    """Columns, and rows of each expert, of other sizes: blocks along k and n hold small numbers."""
    _, k, n = case.arrays["w"].shape
    dtype, sizes = case.dtype, case.arrays["group_sizes"]
    along_k, along_n = (_small(rng, length, dtype) for length in (k, n))
    of_groups = np.ones((len(case.arrays["x"]), 1))
    own = rng.permutation(np.linspace(-span(dtype), span(dtype), len(sizes)).round())
    of_groups[belongs(case), 0] = np.repeat(2.0**own, sizes)
    return scaled(
        case,
        f"{case.label}, columns and groups of other sizes",
        x=of_groups * along_k,
        w=1 / along_k[:, None] / along_n,
        cotangent=1 / of_groups * along_n,
    )


def _small(rng: Rng, length: int, dtype: str) -> np.ndarray:
    return 2.0 ** -rng.integers(0, span(dtype) + 1, length).astype(float)


def plain(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Normal operands."""
    yield operands(rng, "normal operands", dtype)


def wide(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Operands of many magnitudes."""
    for _ in range(1 if budget == "smoke" else 3):
        yield wide_blocks(rng, operands(rng, "groups of all sizes", dtype))
        yield wide_groups(rng, operands(rng, "groups of all sizes", dtype))


def few_groups(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """All rows to one expert, and most experts without rows."""
    total = ROWS - TAIL
    for hot in (0, EXPERTS - 1):
        sizes = one_expert_sizes(experts=EXPERTS, rows=total, hot=hot)
        yield wide_blocks(rng, operands(rng, f"all rows to expert {hot}", dtype, sizes))
    sizes = (0, 61, 0, 0, total - 61, 0, 0)
    yield wide_blocks(rng, operands(rng, f"sizes {list(sizes)}", dtype, sizes))
    # Kernels have other code for what tiles divide, and a square hides a transposition.
    whole = operands(rng, "whole tiles alone", dtype, (256, 0, 64), tail=0, k=128, n=128)
    yield wide_groups(rng, whole)
    yield operands(rng, "one expert and a tail", dtype, (41,), tail=3)
    for sizes in ((0, 0, 61, 0, 42, 0, 33), (61, 0, 42, 0, 33, 0, 0)):
        label = f"sizes {list(sizes)}, no tail"
        yield wide_groups(rng, operands(rng, label, dtype, sizes, tail=0))


def ragged(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Columns that blocks do not divide."""
    for k, n in ((65, 31),) if budget == "smoke" else ((65, 31), (72, 40), (33, 48), (1, 96)):
        case = operands(rng, f"k={k}, n={n}", dtype, k=k, n=n)
        yield wide_blocks(rng, case)
        yield wide_groups(rng, case)


def large(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Eight tiles of 128 terms of each sum, of rows and of columns, each with a rest.

    All numbers are positive, so that long sums are heard in every accumulator.
    """
    for rows, k, n in ((1056, 1056, 40), (130, 40, 1056)):
        label = f"a group of {rows} rows, k={k}, n={n}"
        case = operands(rng, label, dtype, (0, rows, 6), tail=0, k=k, n=n)
        found = {name: np.abs(case.arrays[name]) for name in ("x", "w", "cotangent")}
        yield wide_groups(rng, case.replace(**found))


def many_experts(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """More experts than eight bits count."""
    sizes = rng.multinomial(ROWS - TAIL, [1 / 300] * 300)
    case = operands(rng, "300 experts", dtype, sizes, k=32, n=32)
    yield wide_groups(rng, case)


def one_row(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """A batch of one row."""
    yield operands(rng, "1 row", dtype, (0, 1, 0), tail=0)


def no_rows(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """A batch of no row."""
    yield operands(rng, "no rows", dtype, (0, 0, 0), tail=0)


def steps_along(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Blocks of rows of x, and of the cotangent, that tell their scales."""
    case = operands(rng, "rows that tell their scales", dtype)
    w = case.arrays["w"].copy()
    w[:, ::BLOCK] = 0
    w[:, :, ::BLOCK] = 0
    yield case.replace(x=stepped(rng, ROWS, K, dtype), w=w, cotangent=stepped(rng, ROWS, N, dtype))


def steps_of_w(rng: Rng, dtype: str, budget: Budget, *, axis: int) -> Iterator[Case]:
    """Blocks of w, along k or along n, that tell their scales."""
    case = operands(rng, f"weights that tell their scales along {'kn'[axis]}", dtype)
    length, others = ((K, N), (N, K))[axis]
    w = stepped(rng, EXPERTS * others, length, dtype).reshape(EXPERTS, others, length)
    name = ("x", "cotangent")[axis]
    rows = case.arrays[name].copy()
    rows[:, ::BLOCK] = 0
    yield case.replace(**{name: rows, "w": np.swapaxes(w, 1, 2).copy() if axis == 0 else w})


def steps_of_groups(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Blocks along the rows of a group, of x or of the cotangent, that tell their scales."""
    for telling, other in (("x", "cotangent"), ("cotangent", "x")):
        case = operands(rng, f"groups whose {telling} tells its scales", dtype)
        found, silent = case.arrays[telling].copy(), case.arrays[other].copy()
        start = 0
        for size in MIXED:
            found[start : start + size] = stepped(rng, found.shape[1], size, dtype).T
            silent[start : start + size : BLOCK] = 0
            start += size
        yield case.replace(**{telling: found, other: silent})


def zero_blocks(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """Blocks of zeros, of either sign, along every axis of every operand."""
    case = operands(rng, "blocks of zeros", dtype)
    x, w, dy = (case.arrays[name].copy() for name in ("x", "w", "cotangent"))
    for rows in (x, dy):
        rows[1], rows[20], rows[::3, :BLOCK], rows[:, 5] = 0, -0.0, 0, -0.0
        rows[9:49, BLOCK] = 0  # a column of a whole group, whose blocks along it are zero
    w[2, :BLOCK], w[3, :, BLOCK:], w[5], w[:, 7, 9] = 0, -0.0, 0, 0
    yield case.replace(x=x, w=w, cotangent=dy)


def tiny_operand(rng: Rng, dtype: str, budget: Budget, *, name: str) -> Iterator[Case]:
    """One operand so small that its scales are byte 0, the others so large that results are not."""
    if dtype == "float16":  # which has no numbers as small
        return
    case = operands(rng, f"{name} of size 2^-122", dtype)
    others = {other: 2.0**_OUTER for other in ("x", "w", "cotangent") if other != name}
    case = scaled(case, case.label, **others)
    yield case.replace(**{name: tiny(rng, case.arrays[name].shape, dtype)})


def poisoned_tail(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """NaN, Inf or large numbers in rows of no group: some, all of them, or many tiles."""
    large = 6e4 if dtype == "float16" else 1e30
    some, none = (3, 0, 2, 0, 0, 0, 0), (0,) * EXPERTS
    tails = [(poison, MIXED, TAIL) for poison in (np.nan, np.inf, large)]
    tails += [(np.nan, some, ROWS - sum(some)), (np.nan, none, ROWS)]
    drawn = [(poison, sizes, {"tail": tail}) for poison, sizes, tail in tails]
    # As many rows as there are in whole tiles alone.
    for poison, sizes, options in (*drawn, (np.nan, (20, 0, 9), {"tail": 291, "k": 128, "n": 128})):
        label = f"{poison} in the tail of x and cotangent, sizes {list(sizes)}"
        case = operands(rng, label, dtype, sizes, **options)
        for name in ("x", "cotangent"):
            case.arrays[name][~belongs(case)] = poison
        yield case


def poisoned_row(rng: Rng, dtype: str, budget: Budget, *, name: str) -> Iterator[Case]:
    """NaN or Inf in one row."""
    last = K - 1 if name == "x" else N - 1
    places = ((np.nan, 0, 2), (np.inf, 12, last), (np.nan, 81, 33), (-np.inf, 30, 40))
    for poison, row, column in places:
        case = operands(rng, f"{poison} in row {row} of {name}", dtype)
        case.arrays[name][row, column] = poison
        yield case


def poisoned_expert(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
    """NaN or Inf in one expert's weight, with rows or without."""
    for poison, expert in (
        (np.nan, 0),
        (np.nan, 1),
        (np.inf, 3),
        (-np.inf, 2),
        (np.nan, EXPERTS - 1),
    ):
        case = operands(rng, f"{poison} in expert {expert}", dtype)
        case.arrays["w"][expert, 1, :] = poison
        yield case


def values_of(draw: Draw) -> Draw:
    """The same inputs without a cotangent."""

    def drawn(rng: Rng, dtype: str, budget: Budget) -> Iterator[Case]:
        for case in draw(rng, dtype, budget):
            arrays = {n: a for n, a in case.arrays.items() if n != "cotangent"}
            yield dataclasses.replace(case, arrays=arrays)

    return drawn


def declared(case: Case) -> MXSpec:
    """The format and rules the kernel declares."""
    return case.mx or MXSpec()


def said(truth: oracle.Value) -> np.ndarray:
    """Rows of which something is asked: not those with Inf, read as a number beyond float32."""
    unsaid = np.isfinite(truth.value) & np.isinf(truth.bound)
    return np.asarray(~unsaid.all(axis=tuple(range(1, unsaid.ndim))))


def truth_of(case: Case) -> oracle.Value:
    """The result."""
    mx = declared(case)
    return oracle.grouped_matmul_mx(
        *(case.arrays[name] for name in ("x", "w", "group_sizes")),
        format=mx.format,
        rule=mx.rule,
        nonfinite=mx.nonfinite,
        numerics=case.numerics,
    )


def gradients_of(case: Case) -> oracle.GroupedGradients:
    """The gradients."""
    return oracle.grouped_matmul_mx_vjp(
        *(case.arrays[name] for name in ("x", "w", "group_sizes", "cotangent")),
        **dataclasses.asdict(declared(case)),
        numerics=case.numerics,
    )
