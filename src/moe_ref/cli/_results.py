"""Verdicts in the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from moe_ref._counted import counted
from moe_ref.cli._console import Output

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "cannot tell": "bold yellow",
    "skipped": "dim",
    "xfail": "yellow",
}


def print_results(results: Sequence[Any], console: Output) -> None:
    """Print what was found in one implementation: a table, then what does not hold, and why."""
    first = results[0]
    console.print(Text(first.implementation, style="bold").append(f"  {first.op}", "not bold dim"))
    console.print(results_table(results))
    _print_reasons(results, console)
    console.print()
    for result in results:
        if result.status in ("fail", "cannot tell"):
            _print_failure(result, console)


def results_table(results: Iterable[Any]) -> Table:
    """Check, claim, verdict, and worst error over bound."""
    table = bare_table()
    table.add_column("check", no_wrap=True)
    table.add_column("statement", ratio=1)
    table.add_column("verdict", no_wrap=True)
    table.add_column("error/bound", justify="right", no_wrap=True)
    for result in results:
        verdict = Text(result.status, style=STYLES[result.status])
        table.add_row(result.id, result.statement, verdict, ratio(result.ratio))
    return table


def checks_table(checks: Sequence[Any]) -> Table:
    """What can be checked."""
    table = bare_table()
    for name in ("check", "operation", "kind"):
        table.add_column(name, no_wrap=True)
    table.add_column("statement", ratio=1)
    for check in checks:
        table.add_row(check.id, check.op, check.kind, check.statement)
    return table


def bare_table() -> Table:
    """A table with a line under its head and nothing else."""
    return Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", expand=True
    )


def ratio(value: float | None) -> str:
    """Four significant digits; nothing where equality was asked for.

    Rounding never reaches 1, the line between right and wrong, from either side.
    """
    if value is None:
        return ""
    if 0 < value < 1:
        value = min(value, 0.9999)
    elif value > 1:
        value = max(value, 1.001)
    return f"{value:#.4g}".rstrip(".") if value else "0"


def _print_reasons(results: Sequence[Any], console: Output) -> None:
    """Why checks were skipped or are known to fail, one line a reason."""
    for status in ("skipped", "xfail"):
        reasons: dict[str, list[str]] = {}
        for result in results:
            if result.status == status:
                reasons.setdefault(result.detail or "no reason given", []).append(result.id)
        for reason, ids in reasons.items():
            console.print(Text(f"{status} {', '.join(ids)}: {reason}", style="dim"))


def _print_failure(result: Any, console: Output) -> None:
    heading = Text(result.status, style=STYLES[result.status])
    heading.append(f"  {result.implementation} {result.id}", style="default not bold")
    console.print(heading)
    console.print(result.statement)
    if result.detail:
        console.print(result.detail)
    if result.counterexample:
        console.print(Text(f"{result.about_counterexample}:", style="dim"))
        # As it is, so that it can be pasted: neither wrapped nor indented.
        console.print(result.counterexample, soft_wrap=True)
    if result.saved:
        console.print(Text(f"saved as {result.saved}", style="dim"))
    console.print()


def counts_line(counts: Mapping[str, int]) -> Text:
    """How often each verdict was given."""
    some = [(status, n) for status, n in counts.items() if n or status == "pass"]
    parts = [Text(f"{n} {status}", style=STYLES[status]) for status, n in some]
    return Text(f"{counted(sum(counts.values()), 'check')}: ") + Text(", ").join(parts)
