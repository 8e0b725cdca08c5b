"""`python -m benchmarks [NAME ...] [--json FILE]`: measure, print tables, write them as JSON.

`gpu` measures moe_ref and its peers at real sizes on one GPU, each framework in its own process.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table

from benchmarks import gpu_table
from benchmarks.measure import about

NAMES = ("grouped", "layer", "scaling", "sensitivity", "mx", "mx_errors", "mx_training")
GPU = "gpu"


def main() -> None:
    """Measure the named benchmarks, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*NAMES, GPU))}")
    parser.add_argument("--json", type=pathlib.Path, help="write the measurements to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*NAMES, GPU}:
        parser.error(
            f"`NAME` must be one of {', '.join((*NAMES, GPU))}; got {', '.join(sorted(unknown))}."
        )
    if GPU in arguments.names and len(arguments.names) > 1:
        parser.error(f"`{GPU}` must be the only NAME; got {', '.join(arguments.names)}.")
    console = Console(width=None if sys.stdout.isatty() else 150)
    if arguments.names == [GPU]:
        results = on_gpu()
        for lines in (gpu_table.matmuls(results["matmuls"]), gpu_table.layers(results["layers"])):
            console.print("\n".join([*lines, ""]))
    else:
        results = {"machine": about()}
        for name in arguments.names or NAMES:
            module = importlib.import_module(f"benchmarks.bench_{name}")
            results[name] = module.rows()
            console.print(table(module.TITLE, results[name]))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def on_gpu() -> dict:
    """What `gpu_jax` and `gpu_torch` measured, one after the other."""
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        for framework in ("jax", "torch"):
            file = pathlib.Path(folder) / f"{framework}.json"
            command = [sys.executable, "-m", f"benchmarks.gpu_{framework}", str(file)]
            subprocess.run(command, check=True)
            measured.append(json.loads(file.read_text()))
    jax, torch = measured
    return {
        "machine": jax["machine"] | torch["machine"],
        **{kind: jax[kind] + torch[kind] for kind in ("matmuls", "layers")},
    }


def table(title: str, rows: list[dict]) -> Table:
    """Rows with the same keys as a table."""
    result = Table(*rows[0], title=title)
    for row in rows:
        result.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    return result


if __name__ == "__main__":
    main()
