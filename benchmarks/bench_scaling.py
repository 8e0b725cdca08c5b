"""What the time of a grouped matmul grows with: rows, experts, skew.

Run alone with `python -m benchmarks scaling --json FILE`; `python -m benchmarks.bench_scaling FILE
SVG` draws the file.
"""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.bench_grouped import with_gradients
from benchmarks.gpu_shapes import zipf_sizes
from benchmarks.measure import interleaved
from moe_ref.grouped import grouped_matmul

TITLE = "Grouped matmul [rows, 256] x [experts, 256, 256], value and both gradients, float32"
WIDTH = 256
ROWS, EXPERTS = 4096, 64  # where something else varies
VARIED = {
    "rows": [(rows, EXPERTS, 0.0) for rows in (64, 256, 1024, 4096, 16384)],
    "experts": [(ROWS, experts, 0.0) for experts in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)],
    "skew": [(ROWS, EXPERTS, skew) for skew in (0.0, 0.5, 1.0, 1.5, 2.0, 4.0)],
}


def rows() -> list[dict]:
    """One row a point; the points of each kind take turns."""
    run, result = jax.jit(with_gradients(grouped_matmul)), []
    for varied, points in VARIED.items():
        operands = {point: _operands(*point) for point in points}
        runs = {
            str(point): lambda arrays=arrays: jax.block_until_ready(run(*arrays))
            for point, arrays in operands.items()
        }
        times = interleaved(runs, repeats=9)
        for point, ms in zip(points, times.values(), strict=True):
            number, experts, skew = point
            result.append(
                {
                    "varied": varied,
                    "rows": number,
                    "experts": experts,
                    "zipf": skew,
                    "experts with rows": int((np.asarray(operands[point][2]) > 0).sum()),
                    "ms": ms,
                    "GFLOP/s": 6 * number * WIDTH**2 / ms / 1e6,
                }
            )
    return result


def _operands(number: int, experts: int, skew: float) -> tuple[jax.Array, ...]:
    """Normal x, w and cotangent, and sizes of groups; see `gpu_shapes.zipf_sizes`."""
    rng = np.random.default_rng(0)
    sizes = zipf_sizes(number, experts, skew)
    x, cotangent = (rng.standard_normal((number, WIDTH), np.float32) for _ in range(2))
    w = rng.standard_normal((experts, WIDTH, WIDTH), np.float32)
    return tuple(map(jnp.asarray, (x, w, sizes, cotangent)))


def draw(measured: list[dict], path: pathlib.Path) -> None:
    """Time over each of what varied, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "moe_ref"}
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, (key, label) in zip(
        figure.subplots(1, 3, sharey=True),
        {"rows": "rows", "experts": "experts", "skew": "Zipf exponent"}.items(),
        strict=True,
    ):
        points = [row for row in measured if row["varied"] == key]
        along = [row["zipf" if key == "skew" else key] for row in points]
        axes.plot(along, [row["ms"] for row in points], "o-", markersize=3, color="#3b6ea5")
        axes.set(xlabel=label, yscale="log")
        axes.set_yticks([5, 10, 20, 50], ["5", "10", "20", "50"])
        axes.minorticks_off()
        if key != "skew":
            axes.set_xscale("log", base=2)
            axes.set_xticks(along[::2], [str(each) for each in along[::2]])
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("ms")
    figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads(pathlib.Path(sys.argv[1]).read_text())["scaling"], pathlib.Path(sys.argv[2]))
