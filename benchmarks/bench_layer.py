"""A whole MoE layer beside transformers' `Qwen3MoeSparseMoeBlock` with its `grouped_mm` experts.

Forward and backward in float32 on the CPU, same parameters, same tokens; needs torch and
transformers.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers.models.qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from benchmarks.measure import interleaved
from moe_ref.layers import MoE
from moe_ref.spec import LayerSpec, preset

TITLE = "MoE layer, forward and backward, beside transformers' grouped_mm"


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and how many tokens it gets."""

    tokens: int
    d_model: int
    d_hidden: int
    experts: int
    k: int

    def __str__(self):
        return (
            f"T={self.tokens}, d_model={self.d_model}, d_hidden={self.d_hidden}, "
            f"E={self.experts}, k={self.k}"
        )

    @property
    def spec(self) -> LayerSpec:
        """Softmax over all experts, then the top k, renormalised; SwiGLU."""
        sizes = {"d_model": self.d_model, "d_hidden": self.d_hidden, "num_experts": self.experts}
        return preset("qwen3-30b-a3b").replace(**sizes, k=self.k)

    @property
    def flops(self) -> int:
        """Of the experts' matmuls, forward and backward."""
        return 18 * self.tokens * self.k * self.d_model * self.d_hidden


CASES = (Case(1024, 512, 256, 64, 8),)


def transformers_run(case: Case, seed: int):
    """The block, and a function that runs it forward and backward."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        hidden_size=case.d_model,
        moe_intermediate_size=case.d_hidden,
        num_experts=case.experts,
        num_experts_per_tok=case.k,
        norm_topk_prob=True,
    )
    config._experts_implementation = "grouped_mm"
    block = Qwen3MoeSparseMoeBlock(config)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    x = torch.randn(1, case.tokens, case.d_model, requires_grad=True)
    cotangent = torch.randn(1, case.tokens, case.d_model)

    def run():
        y = block(x)
        return y, *torch.autograd.grad(y, (x, *block.parameters()), cotangent)

    return block, x, cotangent, run


def moe_ref_run(case: Case, block, x, cotangent):
    """Our layer with the block's parameters, as a compiled function forward and backward."""
    weights = {name: value.detach().numpy() for name, value in block.named_parameters()}
    layer = MoE.from_arrays(
        case.spec,
        {
            "router": {"weight": weights["gate.weight"]},
            "experts": {
                "w_in": weights["experts.gate_up_proj"].swapaxes(1, 2),
                "w_out": weights["experts.down_proj"].swapaxes(1, 2),
            },
        },
    )
    parameters, static = eqx.partition(layer, eqx.is_array)

    def value_and_gradients(parameters, x, cotangent):
        def apply(parameters, x):
            return eqx.combine(parameters, static)(x)[0]

        y, pull = jax.vjp(apply, parameters, x)
        return y, pull(cotangent)

    arrays = parameters, jnp.asarray(x.detach()[0].numpy()), jnp.asarray(cotangent[0].numpy())
    program = jax.jit(value_and_gradients).lower(*arrays).compile()
    return program, lambda: jax.block_until_ready(program(*arrays))


def measure(case: Case, *, repeats: int = 15, seed: int = 0) -> dict:
    """One row of the table."""
    block, x, cotangent, theirs = transformers_run(case, seed)
    program, ours = moe_ref_run(case, block, x, cotangent)
    y, dx = theirs()[:2]
    our_y, (_, our_dx) = ours()
    ms = interleaved({"moe_ref": ours, "transformers": theirs}, repeats=repeats)
    return {
        "case": str(case),
        **{f"{name} ms": value for name, value in ms.items()},
        "times faster": ms["transformers"] / ms["moe_ref"],
        "moe_ref temporary MB": program.memory_analysis().temp_size_in_bytes / 2**20,
        "moe_ref GFLOP/s": case.flops / ms["moe_ref"] / 1e6,
        "largest difference / rms": max(difference(our_y, y), difference(our_dx, dx)),
    }


def difference(ours: jax.Array, theirs: torch.Tensor) -> float:
    """Largest difference in units of the root mean square: that both compute one thing."""
    wanted = theirs.detach().numpy()[0]
    return float(np.abs(np.asarray(ours) - wanted).max() / np.sqrt(np.mean(wanted**2)))


def rows() -> list[dict]:
    """The table."""
    return [measure(case) for case in CASES]
