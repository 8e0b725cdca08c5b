"""`moe-ref check` and `moe-ref checks`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from moe_ref.cli._console import Output, print_json, stdout_to_stderr
from moe_ref.cli._guard import FAILED, WrongUseError, require_place, wrong_use
from moe_ref.cli._judge import judge_all
from moe_ref.cli._results import checks_table, counts_line, print_results

Op = Annotated[
    str | None,
    typer.Option(metavar="OP", help="Operation; `moe-ref checks` lists them.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Callable to judge, package.module:name; what moe_ref ships if not given.",
            show_default=False,
        ),
    ] = None,
    op: Op = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Run this check only; repeatable.", show_default=False),
    ] = None,
    budget: Annotated[Literal["smoke", "thorough"], typer.Option(help="Number of inputs.")] = (
        "smoke"
    ),
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="Of the random inputs.")] = 0,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.HTML", help="Write a report.", show_default=False),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save failing inputs as .npz.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge a kernel, or the implementations of moe_ref itself."""
    require_place(html, "--html")
    if save is not None and save.exists() and not save.is_dir():
        raise WrongUseError(f"`--save` must be a folder; {save} is a file.")
    # Imported here: it is heavier than the rest of the command line.
    from moe_ref import conformance

    with stdout_to_stderr():
        implementations = _shipped(op) if target is None else (_load(target, op),)
    _require_known(only or (), implementations)
    reports = judge_all(implementations, only or (), budget=budget, seed=seed, save=save)
    report = conformance.Report(tuple(result for each in reports for result in each.results))
    console = Output()
    for each in () if as_json else reports:
        print_results(each.results, console)
    if html is not None:
        with wrong_use(OSError, prefix="`--html` must be writable; "):
            html.write_text(report.to_html(), encoding="utf-8")
    if as_json:
        print_json(report.to_dict())
    else:
        console.print(counts_line(report.counts()))
    if not report.ok:
        raise typer.Exit(FAILED)


def list_checks(op: Op = None, as_json: Json = False) -> None:
    """List the checks: what each asserts, of which operation."""
    from moe_ref import conformance

    with wrong_use(ValueError):
        found = conformance.checks(op)
    if as_json:
        names = ("id", "op", "kind", "statement", "formula")
        print_json([{name: getattr(c, name) for name in names} for c in found])
    else:
        Output().print(checks_table(found))


def _require_known(only: Sequence[str], implementations: Sequence[Any]) -> None:
    from moe_ref import conformance

    known = {check.id for each in implementations for check in conformance.checks(each.op)}
    for wanted in only:
        if wanted not in known:
            message = "`--only` must be an id that `moe-ref checks` lists for the operation"
            raise WrongUseError(f"{message}; got {wanted!r}.")


def _load(target: str, op: str | None) -> Any:
    from moe_ref import conformance

    try:
        with wrong_use(ValueError):
            return conformance.load_target(target, op=op)
    except SystemExit as error:
        raise WrongUseError(f"{target}: importing it ended the process ({error.code}).") from error


def _shipped(op: str | None) -> tuple[Any, ...]:
    from moe_ref import conformance

    shipped = conformance.builtin()
    known = sorted({implementation.op for implementation in shipped})
    if op not in (None, *known):
        raise WrongUseError(f"`--op` must be one of {', '.join(known)}; got {op!r}.")
    return tuple(implementation for implementation in shipped if op in (None, implementation.op))
