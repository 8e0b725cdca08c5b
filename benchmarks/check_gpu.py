"""`python -m benchmarks.check_gpu FOLDER`: what the suite says about kernels on a GPU, as files.

Sums on tensor cores are declared as measured (`Numerics.on_tensor_cores`); float32 at the highest
precision is float32.
"""

import dataclasses
import pathlib
import subprocess
import sys

from benchmarks import real_kernels
from moe_ref import conformance
from moe_ref.spec import Numerics

_CORES = {name: Numerics.on_tensor_cores(name) for name in ("bfloat16", "float16", "float32")}


def implementations() -> dict[str, conformance.Implementation]:
    """What is judged, by a short name."""
    found = {each.name: each for each in conformance.builtin()}
    ragged = conformance.load_target("jax.lax:ragged_dot", op="grouped_matmul")
    found["ragged_dot"] = dataclasses.replace(ragged, numerics=_CORES)
    torch = real_kernels.torch_grouped_mm
    found["torch grouped_mm"] = dataclasses.replace(torch, numerics=_CORES, dtypes=("bfloat16",))
    return found


def main() -> None:
    """Judge one implementation, or all of them in processes of their own."""
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        report = conformance.run(implementations()[sys.argv[2]], shrink_seconds=0)
        lines = [f"{sys.argv[2]}: {report.counts()}"]
        lines += [f"{r.id} {r.status} {r.ratio or ''} {r.detail[:300]}" for r in report.results]
        name = "".join(c if c.isalnum() else "-" for c in sys.argv[2]).strip("-")
        (folder / f"check-{name}.txt").write_text("\n".join(lines) + "\n")
        print(lines[0])
        for line in lines[1:]:
            if " fail " in line or "cannot tell" in line:
                print("  " + line)
        return
    command = [sys.executable, "-m", "benchmarks.check_gpu", str(folder)]
    running = [subprocess.Popen([*command, name]) for name in implementations()]
    for process in running:
        process.wait()


if __name__ == "__main__":
    main()
