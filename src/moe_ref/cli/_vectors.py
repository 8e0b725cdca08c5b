"""`moe-ref vectors` and `moe-ref verify`: for programs that know no Python."""

from pathlib import Path
from typing import Annotated

import typer

from moe_ref._counted import counted
from moe_ref.cli import _options as option
from moe_ref.cli._console import Output, progress_bar
from moe_ref.cli._guard import WrongUseError, wrong_use
from moe_ref.cli._verdict import Files, expected, give


def vectors(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to fill; absent or empty.")],
    op: option.Op = None,
    budget: option.Budget = "smoke",
    seed: option.Seed = 0,
) -> None:
    """Write the inputs of the checks as safetensors files, with what they should give."""
    from moe_ref.conformance import checks
    from moe_ref.conformance._vectors import write_vectors

    with wrong_use(ValueError):
        checks(op)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUseError(f"`DIR` must be empty or absent; got {folder}.")
    with progress_bar() as bar, wrong_use(OSError, prefix="`DIR` must be writable; "):
        task = bar.add_task("vectors")
        count = write_vectors(
            folder,
            op=op,
            budget=budget,
            seed=seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    Output().print(f"{counted(count, 'input')} in {folder}, {size:.1f} MB")


def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `moe-ref vectors` wrote.")],
    outputs: Annotated[
        Path, typer.Argument(metavar="OUTPUTS", help="Results, in files of the same names.")
    ],
    html: option.Html = None,
    junit: option.JUnit = None,
    xfails: option.Xfails = None,
    as_json: option.Json = False,
) -> None:
    """Judge results that another program computed from the files of `moe-ref vectors`."""
    from moe_ref.conformance._verify import verify as judge

    files, known = Files(html=html, junit=junit), expected(xfails)
    with progress_bar() as bar, wrong_use(ValueError):
        task = bar.add_task("checks")
        reports = judge(
            folder,
            outputs,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    give(reports, known, files, as_json=as_json)
