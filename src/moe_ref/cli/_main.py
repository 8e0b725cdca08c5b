"""`moe-ref` and its commands."""

from typing import Annotated

import typer

import moe_ref
from moe_ref.cli._bench import bench
from moe_ref.cli._check import check, list_checks
from moe_ref.cli._guard import Guarded
from moe_ref.cli._inspect import inspect
from moe_ref.cli._mutants import mutants
from moe_ref.cli._vectors import vectors, verify

app = typer.Typer(
    cls=Guarded,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"moe-ref {moe_ref.__version__}")
        raise typer.Exit
    return wanted


@app.callback(epilog="Exit status: 0 all checks hold, 1 something failed, 2 wrong use.")
def describe(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """What a mixture-of-experts layer computes, and whether your kernel computes it."""


app.command("check")(check)
app.command("checks")(list_checks)
app.command("mutants")(mutants)
app.command("vectors")(vectors)
app.command("verify")(verify)
app.command("inspect")(inspect)
app.command("bench")(bench)


def main() -> None:
    """Run `moe-ref` with the arguments of this process, and exit."""
    app()
