"""From reports to the terminal, to files, and to an exit status."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from moe_ref.cli._console import Output, print_json
from moe_ref.cli._guard import FAILED, require_place, wrong_use
from moe_ref.cli._results import counts_line, print_results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """Where a report is written to; refused before any work is done.

    Args:
        html: the page.
        junit: the JUnit XML.
    """

    html: Path | None = None
    junit: Path | None = None

    def __post_init__(self):
        require_place(self.html, "--html")
        require_place(self.junit, "--junit")

    def write(self, report: Any) -> None:
        """Write what was asked for."""
        wanted = {"--html": (self.html, report.to_html), "--junit": (self.junit, report.to_junit)}
        for option, (path, text) in wanted.items():
            if path is not None:
                with wrong_use(OSError, prefix=f"`{option}` must be writable; "):
                    path.write_text(text(), encoding="utf-8")


def expected(path: Path | None) -> dict[str, str]:
    """The failures that are known, from the file of `--xfails`."""
    from moe_ref.conformance._xfails import read_xfails

    if path is None:
        return {}
    with wrong_use(ValueError):
        return read_xfails(path)


def give(reports: Sequence[Any], xfails: Mapping[str, str], files: Files, *, as_json: bool) -> None:
    """Show reports, write them, and end with exit status 1 unless everything holds.

    Args:
        reports: of one implementation each.
        xfails: reason by id of the checks that are known to fail.
        files: where else they go.
        as_json: print JSON in place of tables.
    """
    from moe_ref import conformance
    from moe_ref.conformance._xfails import expecting

    reports = [expecting(report, xfails) for report in reports]
    whole = conformance.Report(tuple(result for each in reports for result in each.results))
    console = Output()
    for each in () if as_json else reports:
        print_results(each.results, console)
    files.write(whole)
    if as_json:
        print_json(whole.to_dict())
    else:
        console.print(counts_line(whole.counts()))
    if not whole.ok:
        raise typer.Exit(FAILED)
