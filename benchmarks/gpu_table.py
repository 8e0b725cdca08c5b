"""`python -m benchmarks.gpu_table FILE`: what was measured on a GPU, as the tables of the docs."""

import json
import pathlib
import sys

from benchmarks.gpu_shapes import LAYERS, MATMULS, SKEWS

# Of an H200, measured: bytes a second that a copy reads and writes, and a dense matmul's rate.
BANDWIDTH, DENSE = 4.3e12, 800e12
PEER = "torch._grouped_mm"


def matmuls(rows: list[dict]) -> list[str]:
    """A line for each shape and skew: TFLOP/s of value, dx and dw, and ratios."""
    rate = {
        (r["shape"], r.get("skew"), r["what"], r["product"]): r["TFLOP/s"]
        for r in rows
        if "TFLOP/s" in r
    }
    lines = [
        "| shape | groups | value, dx, dw | peer | times the peer | of an H200's roofline |",
        "|---|---|---|---|---|---|",
    ]
    for shape in MATMULS:
        roofline = shape.flops / max(shape.bytes / BANDWIDTH, shape.flops / DENSE) / 1e12
        for skew in SKEWS:
            ours, peer = (
                [rate[shape.name, skew, what, product] for product in ("value", "dx", "dw")]
                for what in ("moe_ref", PEER)
            )
            ratio = sum(1 / r for r in peer) / sum(1 / r for r in ours)
            cells = [
                shape.name,
                skew,
                ", ".join(f"{r:.0f}" for r in ours),
                ", ".join(f"{r:.0f}" for r in peer),
                f"{ratio:.2f}",
                ", ".join(f"{r / roofline:.0%}" for r in ours),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def layers(rows: list[dict]) -> list[str]:
    """A line for each layer: TFLOP/s forward and backward, the ratio, and memory."""
    peer = {r["layer"]: r for r in rows if r["what"].startswith("transformers")}
    ours = {r["layer"]: r for r in rows if r["what"] == "moe_ref, precision default"}
    lines = [
        "| layer | moe_ref | transformers `grouped_mm` | times | GB | of theirs |",
        "|---|---|---|---|---|---|",
    ]
    for shape in LAYERS:
        mine, theirs = ours[shape.name], peer[shape.name]
        times = mine["TFLOP/s"] / theirs["TFLOP/s"]
        memory = f"{mine['GB']:.1f} | {theirs['GB']:.1f}"
        rates = f"{mine['TFLOP/s']:.0f} | {theirs['TFLOP/s']:.0f}"
        lines.append(f"| {shape.name} | {rates} | {times:.2f} | {memory} |")
    return lines


def main() -> None:
    """Print both tables."""
    results = json.loads(pathlib.Path(sys.argv[1]).read_text())
    print("\n".join([*matmuls(results["matmuls"]), "", *layers(results["layers"])]))


if __name__ == "__main__":
    main()
