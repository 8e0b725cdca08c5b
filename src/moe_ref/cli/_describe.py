"""A spec and its sizes, for a reader."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
from rich.table import Table
from rich.text import Text

from moe_ref.layers import MoE
from moe_ref.spec import LayerSpec

_PARTS = ("router", "experts", "capacity")
_LABELS = {"name", "source"}


def spec_table(spec: LayerSpec) -> Table:
    """What is special about a spec, a record a row; what is usual comes last, dimmed."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    usual: list[tuple[str, Any]] = []
    for name, record in (("layer", spec), *((part, getattr(spec, part)) for part in _PARTS)):
        if record is None:
            continue
        special = []
        for field, value, is_default in _fields(record):
            (usual if is_default else special).append((field, value))
        table.add_row(name, _pairs(special) if special else Text("as usual", style="dim"))
    dim = _pairs(usual)
    dim.stylize("dim")
    table.add_row(Text("defaults", style="dim"), dim)
    return table


def _fields(record: Any) -> Iterator[tuple[str, Any, bool]]:
    for field in dataclasses.fields(record):
        if field.name in _PARTS or field.name in _LABELS:
            continue
        value = getattr(record, field.name)
        yield field.name, value, value == field.default


def _pairs(entries: list[tuple[str, Any]]) -> Text:
    text = Text()
    for i, (name, value) in enumerate(entries):
        text.append("  " if i else "").append(f"{name}=", style="dim").append(str(value))
    return text


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters of one part of a layer: all of them, and those that one token meets."""

    part: str
    total: int
    active: int


def parameter_counts(spec: LayerSpec) -> tuple[Size, ...]:
    """Count floating-point parameters, from the spec alone.

    Args:
        spec: the layer.

    Returns:
        Router, routed experts, what else there is, and the total. Where identity experts may be
        chosen, `active` is the most that one token meets.
    """
    layer = eqx.filter_eval_shape(lambda: MoE(spec, key=jax.random.key(0)))
    routed = _count(layer.experts)
    used = min(spec.router.k, spec.router.num_experts)
    router = _count(layer.router)
    parts = [
        Size("router", router, router),
        Size("routed experts", routed, routed // spec.router.num_experts * used),
    ]
    others = {
        "shared expert": (layer.shared, layer.shared_gate),
        "latent projections": (layer.latent_in, layer.latent_out),
        "output bias": layer.output_bias,
    }
    parts += [Size(name, n, n) for name, tree in others.items() if (n := _count(tree))]
    total = Size("total", sum(p.total for p in parts), sum(p.active for p in parts))
    return (*parts, total)


def _count(tree: Any) -> int:
    leaves = jax.tree.leaves(tree)
    floating = (leaf for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating))
    return sum(math.prod(leaf.shape) for leaf in floating)


def parameter_table(sizes: tuple[Size, ...]) -> Table:
    """The counts as a table."""
    table = plain_table()
    table.add_column("parameters", no_wrap=True)
    table.add_column("total", justify="right")
    table.add_column("active for a token", justify="right")
    for size in sizes:
        style = "bold" if size.part == "total" else ""
        table.add_row(size.part, f"{size.total:,}", f"{size.active:,}", style=style)
    return table


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
