"""Options that several commands have, or that need a line to explain."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Op = Annotated[
    str | None,
    typer.Option(metavar="OP", help="Operation; `moe-ref checks` lists them.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Seed = Annotated[int, typer.Option(min=0, metavar="S", help="Of the random inputs.")]
Budget = Annotated[Literal["smoke", "thorough"], typer.Option(help="Number of inputs.")]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="Callable to judge, package.module:name or library.so:symbol; what moe_ref ships if "
        "not given.",
        show_default=False,
    ),
]
Arrays = Annotated[
    Literal["jax", "numpy", "torch"] | None,
    typer.Option(help="Library of the arrays that TARGET takes.", show_default=False),
]
Numerics = Annotated[
    Literal["tensor-cores"] | None,
    typer.Option(
        help="Judge a grouped matmul whose sums are cut off, and whose float32 operands are TF32.",
        show_default=False,
    ),
]
MX = Annotated[
    list[str] | None,
    typer.Option(
        "--mx",
        metavar="NAME=VALUE",
        help="What TARGET quantises to: format, rule, nonfinite, wgrad, axis or block; repeatable.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", help="Run this check only; repeatable.", show_default=False),
]
Html = Annotated[
    Path | None, typer.Option(metavar="PAGE.HTML", help="Write a report.", show_default=False)
]
JUnit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.", show_default=False)
]
Save = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Save failing inputs as .npz.", show_default=False),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep results here as they come, and take over those it holds.",
        show_default=False,
    ),
]
Replay = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Try a failing input of --save again.", show_default=False),
]
Xfails = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Checks that are known to fail: an id and a reason a line.",
        show_default=False,
    ),
]
TimeLimit = Annotated[
    float, typer.Option(min=0.1, metavar="S", help="Seconds a call may take, compiling included.")
]
MemoryLimit = Annotated[
    float, typer.Option(min=0.1, metavar="GIB", help="Memory the kernel may add, on Linux.")
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --full: the model's layer.", show_default=False),
]
Full = Annotated[
    bool, typer.Option("--full", help="Judge a layer at a model's own size; needs --preset.")
]
Tokens = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="With --full: how many; 16 if not given.", show_default=False
    ),
]
