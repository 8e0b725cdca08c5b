"""Hypothesis strategies for inputs worth testing an MoE kernel with.

Each strategy draws a few choices with a meaning (how skewed, how many experts idle, where the ties
are) and one seed; NumPy fills in the arrays. Large arrays are cheap to draw, and a failing example
shrinks to the simplest choices that still fail. Every argument is a value or a strategy, and every
result is a NumPy array, so kernels of any library can be tested.

This module needs hypothesis, and the rest of moe_ref does not: import it by name.

Example:
    ```python
    from hypothesis import given
    from moe_ref.conformance import strategies
    from moe_ref.spec import RouterSpec

    rule = RouterSpec(num_experts=8, k=2)

    @given(strategies.logits(rule, tokens=16))
    def test_my_router(logits):
        assert logits.shape == (16, 8)

    test_my_router()
    ```
"""

import math
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from moe_ref.conformance import _draw
from moe_ref.spec import RouterSpec

T = TypeVar("T")
Drawn = T | SearchStrategy[T]


def seeds() -> SearchStrategy[int]:
    """Seeds of everything that has no meaning of its own; they shrink to 0."""
    return st.integers(0, 2**32 - 1)


def skews() -> SearchStrategy[float | str]:
    """How popular the experts are.

    A number s is a Zipf exponent: the expert of rank r gets a share proportional to r^-s; 0 is
    uniform, inf gives everything to one expert. `two clusters`: half of the tokens prefer the
    experts that the others avoid. `one rank`: only neighbouring experts, an eighth of all, as if
    every rank of 8 sent everything to the same one. `recorded`: the shares of a trained router.
    Which expert has which share is random.
    """
    return st.sampled_from([0.0, 0.7, 1.5, math.inf, *_draw.SKEWS])


def magnitudes() -> SearchStrategy[float]:
    """Factors to scale data with: powers of two, so that scaling itself rounds nothing."""
    return st.sampled_from([1.0, 2.0**-4, 2.0**4, 2.0**-20, 2.0**12])


def kinds() -> SearchStrategy[str]:
    """Kinds of data for `arrays`, the plain one first."""
    return st.sampled_from(_draw.KINDS)


def arrays(
    shape: Drawn[tuple[int, ...]],
    *,
    dtype: Drawn[str] = "float32",
    magnitude: Drawn[float] = 1.0,
    kind: Drawn[str] = "normal",
) -> SearchStrategy[np.ndarray]:
    """Values of a kind times `magnitude`, cut off at the largest number of the dtype.

    Args:
        shape: of the array, at least one axis.
        dtype: "bfloat16", "float16", "float32" or "float64".
        magnitude: common factor; try `magnitudes()`.
        kind: standard `normal` values; `positive`; `integers` in [-8, 8], whose short sums are
            exact; `wide`, over 24 factors of two; `blocks`, the same with one factor for each 32
            neighbours of the last axis; `cancelling` neighbours; `subnormal`. Try `kinds()`.

    Example:
        ```python
        from moe_ref.conformance import strategies

        x = strategies.arrays((16, 32), dtype="bfloat16", magnitude=strategies.magnitudes())
        ```
    """
    return st.builds(
        _draw.array,
        _as(shape),
        dtype=_as(dtype),
        magnitude=_as(magnitude),
        kind=_as(kind),
        seed=seeds(),
    )


def mx_arrays(
    shape: Drawn[tuple[int, ...]],
    *,
    dtype: Drawn[str] = "float32",
    depth: Drawn[int] | None = None,
    poison: Drawn[float] | None = None,
) -> SearchStrategy[np.ndarray]:
    """Values for a kernel that quantises to MX blocks of 32 along the last axis.

    The largest magnitude of a block is anywhere in the dtype, subnormal numbers included, and in
    half of the blocks next to where some rule takes another scale; one block in 16 holds zeros of
    either sign. Gaussian data would hide a second quantisation.

    Args:
        shape: of the array, at least one axis.
        dtype: "bfloat16", "float16" or "float32".
        depth: how many powers of two below the largest of its block a value may be; None: any.
        poison: share of the blocks with a NaN or an Inf; None: none, some, or all.

    Example:
        ```python
        from moe_ref.conformance import strategies

        x = strategies.mx_arrays((16, 64), dtype="bfloat16", poison=0.0)
        ```
    """
    return st.builds(
        _draw.mx_array,
        _as(shape),
        dtype=_as(dtype),
        depth=_as(depth, st.sampled_from([0, 4, 14, 36])),
        poison=_as(poison, st.sampled_from([0.0, 0.25, 1.0])),
        seed=seeds(),
    )


def logits(
    spec: RouterSpec,
    *,
    tokens: Drawn[int],
    skew: Drawn[float | str] | None = None,
    idle: Drawn[int] | None = None,
    ties: Drawn[str] | None = None,
    coarse: Drawn[bool] | None = None,
    dtype: Drawn[str] = "float32",
) -> SearchStrategy[np.ndarray]:
    """Router logits [tokens, num_choices].

    Args:
        spec: the router they are meant for.
        tokens: number of tokens.
        skew: popularity of the experts; None: `skews()`.
        idle: number of experts that are chosen only for want of others; None: 0 to all but k.
        ties: `none`; `k`: in every token the last chosen and the first rejected expert are equal;
            `group`: the last kept and the first rejected group are (nothing without groups);
            `all`: all logits of a token are equal. None: any. The ties are exact, as long as the
            selection bias, if there is one, is the same for all experts.
        coarse: round to bfloat16 first, so that ties occur anywhere; None: either.
        dtype: of the result.

    Example:
        ```python
        from moe_ref.conformance import strategies
        from moe_ref.spec import preset

        tied = strategies.logits(preset("deepseek-v3").router, tokens=8, ties="group")
        ```
    """
    spare = spec.num_choices - spec.k
    return st.builds(
        _draw.logits,
        st.just(spec),
        tokens=_as(tokens),
        skew=_as(skew, skews()),
        idle=_as(idle, st.integers(0, spare)),
        ties=_as(ties, st.sampled_from(_draw.TIES)),
        coarse=_as(coarse, st.booleans()),
        dtype=_as(dtype),
        seed=seeds(),
    )


def routings(
    *,
    tokens: Drawn[int],
    k: Drawn[int],
    num_choices: Drawn[int],
    skew: Drawn[float | str] | None = None,
    idle: Drawn[int] | None = None,
    repeats: Drawn[bool] | None = None,
    empty: Drawn[float] | None = None,
) -> SearchStrategy[np.ndarray]:
    """Recorded expert ids [tokens, k], int32.

    Args:
        tokens: number of tokens.
        k: slots of a token.
        num_choices: ids are below this.
        skew: popularity of the experts; None: `skews()`.
        idle: number of experts that nobody visits, where enough others are left; None: any.
        repeats: an expert may fill several slots of one token; None: either. Without repeats
            `k` is at most `num_choices`.
        empty: share of empty slots, id -1; None: 0, some, or all.

    Example:
        ```python
        from moe_ref.conformance import strategies

        ids = strategies.routings(tokens=16, k=2, num_choices=8, skew=float("inf"), empty=0.0)
        ```
    """
    return st.builds(
        _draw.routing,
        tokens=_as(tokens),
        k=_as(k),
        num_choices=_as(num_choices),
        skew=_as(skew, skews()),
        idle=_as(idle, st.sampled_from([0, 1, 3, 1000])),
        repeats=_as(repeats, st.booleans()),
        empty=_as(empty, st.sampled_from([0.0, 0.25, 1.0])),
        seed=seeds(),
    )


def masks(
    *,
    tokens: Drawn[int],
    padding: Drawn[float] | None = None,
    place: Drawn[str] | None = None,
) -> SearchStrategy[np.ndarray]:
    """Masks [tokens] bool, True for real tokens.

    Args:
        tokens: number of tokens.
        padding: share of padding tokens; None: none, some, or all.
        place: `end` or `anywhere`; None: either.

    Example:
        ```python
        from moe_ref.conformance import strategies

        padded = strategies.masks(tokens=16, padding=0.5, place="end")
        ```
    """
    return st.builds(
        _draw.mask,
        tokens=_as(tokens),
        padding=_as(padding, st.sampled_from([0.0, 0.3, 1.0])),
        place=_as(place, st.sampled_from(_draw.PLACES)),
        seed=seeds(),
    )


def group_sizes(
    *,
    experts: Drawn[int],
    rows: Drawn[int],
    skew: Drawn[float | str] | None = None,
    idle: Drawn[int] | None = None,
    idle_ends: Drawn[bool] | None = None,
    tail: Drawn[float] | None = None,
    dtype: Drawn[str] = "int32",
) -> SearchStrategy[np.ndarray]:
    """Group sizes [experts] for a grouped matmul over `rows` rows.

    Args:
        experts: number of groups.
        rows: rows there are; the sizes never sum to more.
        skew: popularity of the experts; None: `skews()`.
        idle: number of empty groups; None: any.
        idle_ends: the first and the last group are empty, where there are three; None: either.
        tail: share of the rows that no group owns; None: none, some, or all of them.
        dtype: an integer dtype. Sizes it cannot hold are cut to its largest value.

    Example:
        ```python
        from moe_ref.conformance import strategies

        sizes = strategies.group_sizes(experts=8, rows=64, idle_ends=True, tail=0.0)
        ```
    """
    return st.builds(
        _draw.group_sizes,
        experts=_as(experts),
        rows=_as(rows),
        skew=_as(skew, skews()),
        idle=_as(idle, st.sampled_from([0, 1, 3, 1000])),
        idle_ends=_as(idle_ends, st.booleans()),
        tail=_as(tail, st.sampled_from([0.0, 0.3, 1.0])),
        dtype=_as(dtype),
        seed=seeds(),
    )


def _as(value, default: SearchStrategy | None = None) -> SearchStrategy:
    if value is None and default is not None:
        return default
    return value if isinstance(value, SearchStrategy) else st.just(value)
