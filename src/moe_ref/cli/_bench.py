"""`moe-ref bench`: how fast it is beside its peers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from moe_ref.cli._guard import FAILED, WrongUseError, require_place

NAMES = ("grouped", "layer", "scaling", "sensitivity", "mx", "mx_errors", "mx_training", "gpu")


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help=f"{', '.join(NAMES[:-1])} (all of these if none is named), or gpu.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers there.")
    ] = None,
) -> None:
    """Measure moe_ref beside the peers that are installed, in a checkout of its repository."""
    require_place(json, "--json")
    if not Path("benchmarks", "gpu_shapes.py").is_file():
        raise WrongUseError(
            "`moe-ref bench` must be run in a checkout of moe_ref, where `benchmarks` is; "
            f"got {Path.cwd()}."
        )
    if unknown := sorted(set(names or []) - set(NAMES)):
        raise WrongUseError(f"`NAME` must be one of {', '.join(NAMES)}; got {', '.join(unknown)}.")
    command = [sys.executable, "-m", "benchmarks", *(names or [])]
    environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} | os.environ
    if json is not None:
        command += ["--json", str(json)]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise typer.Exit(FAILED)
