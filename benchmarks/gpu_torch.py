"""`python -m benchmarks.gpu_torch FILE`: torch's and transformers' grouped matmul on one GPU."""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers.models.qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from benchmarks import measure
from benchmarks.gpu_shapes import LAYERS, MATMULS, SKEWS, Layer, Matmul, group_sizes

grouped = torch._grouped_mm
ON = {"device": "cuda", "dtype": torch.bfloat16}


def median_ms(run, calls: int = 10) -> float:
    """See `measure.median_ms`."""
    return measure.median_ms(run, lambda _: torch.cuda.synchronize(), calls=calls)


def matmul_rows(shape: Matmul) -> list[dict]:
    """Times of one shape."""
    x, cotangent = torch.randn(shape.rows, shape.k, **ON), torch.randn(shape.rows, shape.n, **ON)
    w = torch.randn(shape.experts, shape.k, shape.n, **ON)
    rows = []
    for skew in SKEWS:
        ends = np.cumsum(group_sizes(shape, skew)).astype(np.int32)
        offs = torch.tensor(ends, device="cuda")
        runs = {
            "value": lambda offs=offs: grouped(x, w, offs=offs),
            "dx": lambda offs=offs: grouped(cotangent, w.transpose(1, 2), offs=offs),
            "dw": lambda offs=offs: grouped(x.t(), cotangent, offs=offs),
        }
        for product, run in runs.items():
            ms = median_ms(run)
            rows.append(
                {
                    "shape": shape.name,
                    "skew": skew,
                    "what": "torch._grouped_mm",
                    "product": product,
                    "ms": ms,
                    "TFLOP/s": shape.flops / ms / 1e9,
                }
            )
            print(rows[-1], flush=True)
    return rows


def layer_rows(shape: Layer) -> list[dict]:
    """Forward and backward of transformers' Qwen3-MoE block with `grouped_mm`."""
    config = Qwen3MoeConfig(
        hidden_size=shape.d_model,
        moe_intermediate_size=shape.d_hidden,
        num_experts=shape.experts,
        num_experts_per_tok=shape.k,
        norm_topk_prob=True,
    )
    config._experts_implementation = "grouped_mm"
    with torch.device("cuda"):
        block = Qwen3MoeSparseMoeBlock(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    x = torch.randn(1, shape.tokens, shape.d_model, requires_grad=True, **ON)
    cotangent = torch.randn(1, shape.tokens, shape.d_model, **ON)

    def forward():
        with torch.no_grad():
            block(x)

    def both():
        torch.autograd.grad(block(x), (x, *block.parameters()), cotangent)

    forward_ms, ms = median_ms(forward, calls=5), median_ms(both, calls=5)
    row = {
        "layer": shape.name,
        "what": "transformers grouped_mm",
        "forward ms": forward_ms,
        "ms": ms,
        "forward TFLOP/s": shape.flops / 3 / forward_ms / 1e9,
        "TFLOP/s": shape.flops / ms / 1e9,
        "GB": torch.cuda.max_memory_allocated() / 1e9,
    }
    print(row, flush=True)
    return [row]


def main() -> None:
    """Measure what is asked for: `matmuls`, `layers` or both."""
    file, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or ["matmuls", "layers"]
    results: dict = {
        "machine": {"torch": torch.__version__, "transformers": transformers.__version__}
    }
    if "matmuls" in wanted:
        results["matmuls"] = [row for shape in MATMULS for row in matmul_rows(shape)]
    torch.cuda.empty_cache()
    if "layers" in wanted:
        results["layers"] = []
        for shape in LAYERS:
            torch.cuda.reset_peak_memory_stats()
            results["layers"] += layer_rows(shape)
            torch.cuda.empty_cache()
    file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
