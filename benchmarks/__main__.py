"""`python -m benchmarks [NAME ...] [--json FILE]`: measure, print tables, write them as JSON."""

import argparse
import importlib
import json
import pathlib
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.measure import about

NAMES = ("grouped", "layer", "sensitivity")


def main() -> None:
    """Measure the named benchmarks, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", type=pathlib.Path, help="write the measurements to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"`NAME` must be one of {', '.join(NAMES)}; got {', '.join(sorted(unknown))}.")
    console = Console(width=None if sys.stdout.isatty() else 150)
    results: dict = {"machine": about()}
    for name in arguments.names or NAMES:
        module = importlib.import_module(f"benchmarks.bench_{name}")
        results[name] = module.rows()
        console.print(table(module.TITLE, results[name]))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def table(title: str, rows: list[dict]) -> Table:
    """Rows with the same keys as a table."""
    result = Table(*rows[0], title=title)
    for row in rows:
        result.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    return result


if __name__ == "__main__":
    main()
