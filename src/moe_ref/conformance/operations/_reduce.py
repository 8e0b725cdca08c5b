"""Pieces of a failing input that may fail too."""

from collections.abc import Iterator

from moe_ref.conformance._case import Case


def halves(count: int) -> Iterator[list[int]]:
    """Subsets to try: both halves, then all but one."""
    everything = list(range(count))
    if count >= 2:
        yield everything[: count // 2]
        yield everything[count // 2 :]
    if 1 <= count <= 12:
        for i in everything:
            yield everything[:i] + everything[i + 1 :]


def fewer_tokens(case: Case, *names: str) -> Iterator[Case]:
    """Fewer rows of the arrays that have one row a token; the first of `names` counts them."""
    for keep in halves(len(case.arrays[names[0]])):
        yield case.replace(**{n: case.arrays[n][keep] for n in names if case.has(n)})
