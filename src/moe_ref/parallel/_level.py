"""One exchange over one mesh axis, as static numbers."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from moe_ref._errors import require, require_types
from moe_ref.parallel._plan import expected_destinations
from moe_ref.spec import MXSpec

Transport = Literal["allgather", "alltoall", "rounds", "ragged"]
"""How rows cross a mesh axis."""
Survivors = Literal["source_order", "per_source"]
"""Which rows are served where a receive buffer is too small."""
OnOverflow = Literal["drop", "error"]
"""What happens to the others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounded:
    r"""A receive buffer smaller than the worst case: what does not fit is dropped and counted.

    It has $\lceil \mathrm{factor} \cdot \mathrm{fair} \rceil$ rows, at most the worst case, and for
    `per_source` rounded up to a multiple of the sources. Fair is what a rank gets under uniform
    routing: `expected_destinations` / ranks of all tokens with dedup, k / ranks of them without.

    A row is dropped whole, with all slots that its token has on that rank; the other weights stay
    as they are. `aux.overflow` counts rows from rank to rank, `aux.kept` the slots that are left. A
    row that is lost between nodes counts once for every rank behind.

    Args:
        factor: of the fair share.
        survivors: who is served. `source_order`: rows fill the buffer by source rank, then token,
            so that late ranks lose first (MaxText; for `ragged`). `per_source`: each source has
            the same number of rows, filled in token order (for `alltoall` and `ragged`).
        on_overflow: `drop` the rows and count them in `aux.overflow`, or stop with an `error`.

    Raises:
        ValueError: a field that is no positive factor or no such name.
    """

    factor: float | int
    survivors: Survivors = "per_source"
    on_overflow: OnOverflow = "drop"

    def __post_init__(self):
        require_types(self)
        require(self.factor > 0, "factor", "positive", self.factor)


class Level(NamedTuple):
    """An exchange over `axis`.

    Attributes:
        axis: mesh axis.
        axes: all axes of the exchange: trip counts must agree over them.
        ranks: size of `axis`.
        experts: experts below one rank of `axis`.
        transport: how rows cross.
        dedup: a token once for each rank, else once a slot.
        pair: rows from a rank to a rank in one collective; unused by `ragged`.
        receive: rows of the receive buffer.
        fair: rows in it under uniform routing, if it takes all at once.
        survivors: whom `ragged` serves; None where everything fits.
        dtype: of x on the wire.
        wire: how x is quantised there; None: not at all.
        back: dtype of partial sums and gradients on the wire.
        ragged: `lax.ragged_all_to_all` or what stands in for it.
    """

    axis: str
    axes: tuple[str, ...]
    ranks: int
    experts: int
    transport: Transport
    dedup: bool
    pair: int
    receive: int
    fair: float
    survivors: Survivors | None
    dtype: str
    wire: MXSpec | None
    back: str
    ragged: Callable[..., Any]

    @property
    def may_drop(self) -> bool:
        """Whether a row may find no place."""
        return self.survivors is not None


class Sizes(NamedTuple):
    """Rows of one exchange: for a pair of ranks, for a receive buffer, and whether they suffice."""

    pair: int
    receive: int
    survivors: Survivors | None


def sizes(
    *,
    tokens: int,
    k: int,
    ranks: int,
    transport: Transport,
    dedup: bool,
    rows: int | None,
    bounded: Bounded | None,
    fair: float,
) -> Sizes:
    """Static sizes of an exchange of `tokens` rows a rank.

    Args:
        tokens: rows of a rank.
        k: slots of a row.
        ranks: of the axis.
        transport: how rows cross.
        dedup: a row once for each rank.
        rows: of a pair in a round; None: `tokens` / `ranks`, so that a round receives as many rows
            as a rank has.
        bounded: None for the worst case.
        fair: rows a rank gets under uniform routing.
    """
    most = tokens if dedup else tokens * k
    if transport == "rounds":
        pair = max(1, min(most, -(-tokens // ranks) if rows is None else rows))
        return Sizes(pair, ranks * pair, None)
    if bounded is None:
        return Sizes(most, ranks * most, None)
    limit = min(ranks * most, max(1, _ceil(bounded.factor * fair)))
    if bounded.survivors == "source_order":
        return Sizes(most, limit, bounded.survivors if limit < ranks * most else None)
    pair = min(most, -(-limit // ranks))
    return Sizes(pair, ranks * pair, bounded.survivors if pair < most else None)


def fair_rows(
    *, tokens: int, k: int, num_experts: int, below: int, sources: int, dedup: bool
) -> float:
    """Rows that a rank with `below` experts gets from `sources` ranks under uniform routing."""
    ranks = num_experts // below
    if not dedup:
        return sources * tokens * k / ranks
    mean = expected_destinations(num_experts=num_experts, k=k, ranks=ranks)
    return sources * tokens * mean / ranks


def _ceil(value: float) -> int:
    return -int(-value // 1)
