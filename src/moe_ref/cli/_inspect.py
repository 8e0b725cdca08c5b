"""`moe-ref inspect`."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import typer
from rich.table import Table
from rich.text import Text

from moe_ref.cli._chart import load_chart
from moe_ref.cli._console import Output, print_json, waiting
from moe_ref.cli._describe import parameter_counts, parameter_table, plain_table, spec_table
from moe_ref.cli._guard import WrongUseError, require_place, wrong_use
from moe_ref.cli._hidden import Hidden, drawn, read
from moe_ref.cli._load import Load, measure_load
from moe_ref.cli._plot import plot_load
from moe_ref.models import load_layer
from moe_ref.spec import LayerSpec

DType = Literal["float64", "float32", "bfloat16", "float16"]


def inspect(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A checkpoint: config.json and safetensors.", show_default=False
        ),
    ],
    layer: Annotated[
        str,
        typer.Option(metavar="N", help="Number of the layer.", show_default=False),
    ],
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="X.NPY",
            help="Hidden states [..., d_model]; random normal ones if not given.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="T", help="Random tokens; 1024.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="Of what is random.")] = 0,
    dtype: Annotated[
        DType | None,
        typer.Option(help="Compute in this; as stored if not given.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="LOAD.PNG", help="Draw the load.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what a layer of a checkpoint computes, its size, and the load of its experts."""
    if input_file is not None and tokens is not None:
        raise WrongUseError("`--tokens` must not be given with `--input`, which holds them.")
    require_place(plot, "--plot")
    found = _look(folder, layer, input_file, tokens or 1024, seed, dtype)
    if plot is not None:
        load = found.load
        title = f"{found.title}: {found.hidden.counted}"
        plot_load(load.counts, plot, title=title, capacity=load.capacity)
    if as_json:
        print_json(found.to_dict())
    else:
        found.show(Output())


def _look(
    folder: Path, layer: str, input_file: Path | None, tokens: int, seed: int, dtype: str | None
) -> "_Found":
    number = int(layer) if re.fullmatch(r"-?[0-9]{1,9}", layer) else layer
    # 64-bit types are off unless asked for, and a checkpoint may hold float64.
    with jax.enable_x64(True):
        with waiting(f"reading {folder}"), wrong_use(ValueError, OSError):
            loaded = load_layer(folder, layer=number, dtype=dtype)
        width = loaded.spec.d_model
        if input_file is None:
            hidden = drawn(tokens=tokens, d_model=width, seed=seed)
        else:
            hidden = read(input_file, d_model=width)
        load = measure_load(loaded, hidden, seed=seed)
    return _Found(folder, number, loaded.spec, str(loaded.experts.w_in.dtype), hidden, load)


@dataclasses.dataclass(frozen=True)
class _Found:
    folder: Path
    layer: int | str
    spec: LayerSpec
    dtype: str
    hidden: Hidden
    load: Load

    @property
    def title(self) -> str:
        return f"{self.folder.resolve().name}, layer {self.layer}"

    def to_dict(self) -> dict[str, Any]:
        sizes = parameter_counts(self.spec)
        return {
            "folder": str(self.folder),
            "layer": self.layer,
            "dtype": self.dtype,
            "spec": dataclasses.asdict(self.spec),
            "parameters": {s.part: {"total": s.total, "active": s.active} for s in sizes},
            "input": self.hidden.what,
            "tokens": self.hidden.tokens,
            "load": list(self.load.counts),
            "utilisation": self.load.statistics(),
        }

    def show(self, console: Output) -> None:
        console.print(Text(f"{self.title}, {self.dtype}", style="bold"))
        console.print()
        console.print(spec_table(self.spec))
        console.print()
        console.print(parameter_table(parameter_counts(self.spec)))
        console.print()
        console.print(Text(f"load of {self.hidden.counted} ({self.hidden.what})"))
        if self.spec.router.zero_experts:
            first, last = self.spec.router.num_experts, self.spec.router.num_choices - 1
            console.print(Text(f"experts {first} to {last} return their input", style="dim"))
        console.print()
        ascii_only = not console.encoding.startswith("utf")
        for line in load_chart(self.load.counts, width=console.width, ascii_only=ascii_only):
            console.print(line, no_wrap=True, overflow="crop")
        console.print()
        console.print(self._utilisation())

    def _utilisation(self) -> Table:
        values = self.load.statistics()
        over = values["max_over_mean"]
        shown = {
            "slots": f"{values['slots']:,}",
            "mean": f"{values['mean']:,.1f}",
            "max": f"{values['max']:,}",
            "max/mean": f"{over:.2f}" if over is not None else "-",
            "min": f"{values['min']:,}",
            "idle experts": f"{values['idle']:,}",
            "capacity": "none" if values["capacity"] is None else f"{values['capacity']:,}",
            "dropped slots": f"{values['dropped']:,}",
        }
        table = plain_table()
        for name in shown:
            table.add_column(name, justify="right", overflow="fold")
        table.add_row(*shown.values())
        return table
