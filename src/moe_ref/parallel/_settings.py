"""How the experts of a layer are divided and reached, as data."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import Mesh
from jax.typing import DTypeLike

from moe_ref._errors import require, require_choice
from moe_ref._numerics import accumulator_dtype, float_dtype
from moe_ref.grouped import implementations
from moe_ref.parallel._layout import Layout, check_mesh
from moe_ref.parallel._level import Bounded, Level, Transport, fair_rows, sizes
from moe_ref.parallel._plan import expected_destinations
from moe_ref.spec import LayerSpec, MXSpec

TRANSPORTS = ("allgather", "alltoall", "rounds", "ragged")


class Settings(NamedTuple):
    """The arguments of `ExpertParallel`."""

    mesh: Mesh
    layout: Layout
    transport: Transport
    rows: int | None
    receive: Bounded | None
    dedup: bool
    chunks: int
    wire: MXSpec | None
    return_dtype: DTypeLike | None
    implementation: str
    precision: str
    ragged: Callable[..., Any]

    @property
    def ranks(self) -> int:
        """Devices that the experts are divided among."""
        return math.prod(self.mesh.shape[axis] for axis in self.layout.axes)

    @property
    def token_ranks(self) -> int:
        """Devices that the tokens are divided among."""
        return math.prod(self.mesh.shape[axis] for axis in self.layout.tokens)


def check(settings: Settings) -> Settings:
    """The settings; ValueError where they contradict the mesh or each other."""
    s = settings
    require_choice(s.transport, "transport", TRANSPORTS)
    require_choice(s.implementation, "implementation", ("auto", *implementations()))
    require_choice(s.precision, "precision", ("default", "high", "highest"))
    check_mesh(s.mesh, s.layout)
    only = f"None with transport={s.transport!r}"
    require(s.rows is None or s.transport == "rounds", "rows", only, s.rows)
    require(s.rows is None or s.rows >= 1, "rows", "at least 1", s.rows)
    fits = s.receive is None or s.transport in ("alltoall", "ragged")
    require(fits, "receive", only, s.receive)
    in_order = s.receive is not None and s.receive.survivors == "source_order"
    equal = "'per_source' with transport='alltoall', whose blocks are of one size"
    require(not in_order or s.transport == "ragged", "survivors", equal, "'source_order'")
    always = "True with transport='allgather', which sends no row twice"
    require(s.dedup or s.transport != "allgather", "dedup", always, s.dedup)
    require(s.chunks >= 1, "chunks", "at least 1", s.chunks)
    if s.return_dtype is not None:
        float_dtype(s.return_dtype, "return_dtype")
    return settings


def check_spec(settings: Settings, spec: LayerSpec) -> None:
    """ValueError for a layer that the mesh does not divide."""
    mesh, layout = settings.mesh, settings.layout
    num, sizes = spec.router.num_experts, {axis: mesh.shape[axis] for axis in layout.axes}
    fits = num % settings.ranks == 0
    require(fits, "axes", f"of a size that divides num_experts={num}", sizes)
    if layout.tensor is not None:
        size, hidden = mesh.shape[layout.tensor], spec.experts.d_hidden
        requirement = f"of a size that divides d_hidden={hidden}"
        require(hidden % size == 0, "tensor", requirement, {layout.tensor: size})


def levels(
    settings: Settings, *, tokens: int, k: int, num_experts: int, dtype: str
) -> tuple[Level, ...]:
    """The exchanges of `tokens` tokens a rank, outermost first, with their static sizes.

    Args:
        settings: how the experts are divided.
        tokens: of one rank (and chunk).
        k: slots of a token.
        num_experts: of the layer.
        dtype: of the tokens.
    """
    s, made = settings, []
    rows, slots, below, sources = tokens, k, num_experts, 1
    back = accumulator_dtype(dtype) if s.return_dtype is None else float_dtype(s.return_dtype)
    for axis in s.layout.axes:
        ranks = s.mesh.shape[axis]
        below, sources = below // ranks, sources * ranks
        fair = fair_rows(
            tokens=tokens,
            k=k,
            num_experts=num_experts,
            below=below,
            sources=sources,
            dedup=s.dedup,
        )
        size = sizes(
            tokens=rows,
            k=slots,
            ranks=ranks,
            transport=s.transport,
            dedup=s.dedup,
            rows=s.rows,
            bounded=s.receive,
            fair=fair,
        )
        made.append(
            Level(
                axis=axis,
                axes=s.layout.axes,
                ranks=ranks,
                experts=below,
                transport=s.transport,
                dedup=s.dedup,
                pair=size.pair,
                receive=size.receive,
                fair=fair,
                survivors=size.survivors,
                dtype=dtype,
                wire=s.wire,
                back=str(back),
                ragged=s.ragged,
            )
        )
        rows, slots = size.receive, slots if s.dedup else 1
    return tuple(made)


def copies(exchanges: tuple[Level, ...], *, k: int, num_experts: int) -> tuple[int, ...]:
    """How many copies of tokens a rank makes room for first: little more than its share, and twice.

    Args:
        exchanges: of `levels`.
        k: slots of a token.
        num_experts: of the layer.
    """
    last = exchanges[-1]
    ranks = num_experts // last.experts
    visited = expected_destinations(num_experts=num_experts, k=k, ranks=ranks)
    slots = k / visited if last.dedup else 1.0
    share = slots * (last.receive if last.transport == "rounds" else last.fair)
    return math.ceil(1.125 * share), math.ceil(2 * share)
