"""Kernels of other libraries as implementations to be judged, for `moe-ref check`.

`moe-ref check benchmarks.real_kernels:torch_grouped_mm`, for example. What they were found to do is
written down in `docs/real-kernels.md`.
"""

import dataclasses
import importlib
from typing import Any

import jax

from moe_ref.conformance import Case, Implementation
from moe_ref.spec import MXSpec, Numerics, preset

# As transformers rounds: every intermediate to the model's dtype.
_ROUNDED = dataclasses.replace(
    Numerics.of("bfloat16"),
    pre_activation="bfloat16",
    activation="bfloat16",
    expert_output="bfloat16",
    combine="bfloat16",
    cotangent="bfloat16",
)


def _torch_grouped_mm(x: Any, w: Any, group_sizes: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    ends = torch.cumsum(group_sizes, 0).to(torch.int32)
    return torch.nn.functional.grouped_mm(x, w, offs=ends)


torch_grouped_mm = Implementation(
    name="torch grouped_mm",
    op="grouped_matmul",
    function=_torch_grouped_mm,
    arrays="torch",
    gradients=True,
    # Rows and columns must be whole multiples of 16 bytes.
    multiple_of={"k": 8, "n": 8},
)


def _megablox(x: Any, w: Any, group_sizes: Any) -> Any:
    ops: Any = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.ops")
    tiling = (8, 128, 128)
    return ops.gmm(x, w, group_sizes, x.dtype, tiling, interpret=True)


megablox_gmm = Implementation(
    name="Pallas megablox gmm, interpreted",
    op="grouped_matmul",
    function=_megablox,
    gradients=True,
    multiple_of={"rows": 8, "k": 128, "n": 128},
    zero_rows=False,
)


def _tokamax(x: Any, w: Any, group_sizes: Any) -> Any:
    tokamax: Any = importlib.import_module("tokamax")
    return tokamax.ragged_dot(x, w, group_sizes)


tokamax_ragged_dot = Implementation(
    name="tokamax ragged_dot", op="grouped_matmul", function=_tokamax, gradients=True
)


def _is_mixtral(case: Case) -> bool:
    spec = preset("mixtral-8x7b").replace(
        d_model=case.spec.d_model,
        d_hidden=case.spec.experts.d_hidden,
        num_experts=case.spec.router.num_experts,
        k=case.spec.router.k,
        router_bias=case.spec.router.router_bias,
    )
    return case.spec == spec


def _transformers(layer: Any, x: Any, backend: str) -> Any:
    """The experts of transformers' Qwen3-MoE under Mixtral's routing rule, in torch."""
    torch: Any = importlib.import_module("torch")
    model: Any = importlib.import_module("transformers.models.qwen3_moe.modeling_qwen3_moe")
    moe: Any = importlib.import_module("transformers.integrations.moe")
    logits = torch.nn.functional.linear(x, layer.router.weight, layer.router.bias)
    scores = torch.softmax(logits.float(), dim=-1)
    weights, experts = torch.topk(scores, layer.spec.router.k, dim=-1)
    weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
    config = model.Qwen3MoeConfig(
        hidden_size=layer.spec.d_model,
        moe_intermediate_size=layer.spec.experts.d_hidden,
        num_experts=layer.spec.router.num_experts,
        num_experts_per_tok=layer.spec.router.k,
    )
    config._experts_implementation = backend
    block = model.Qwen3MoeExperts(config)
    del block.gate_up_proj, block.down_proj
    block.gate_up_proj = layer.experts.w_in.transpose(1, 2)
    block.down_proj = layer.experts.w_out.transpose(1, 2)
    forward = {
        "batched_mm": moe.batched_mm_experts_forward,
        "grouped_mm": moe.grouped_mm_experts_forward,
    }.get(backend, lambda block, *given: block(*given))
    routing = dataclasses.make_dataclass("Routing", ["experts", "weights", "logits"])
    aux = dataclasses.make_dataclass("Aux", ["routing"])
    return forward(block, x, experts, weights), aux(routing(experts, weights, logits))


def _eager(layer: Any, x: Any) -> Any:
    return _transformers(layer, x, "eager")


def _batched(layer: Any, x: Any) -> Any:
    return _transformers(layer, x, "batched_mm")


def _grouped(layer: Any, x: Any) -> Any:
    return _transformers(layer, x, "grouped_mm")


def _layer(name: str, function: Any) -> Implementation:
    return Implementation(
        name=f"transformers {name}",
        op="layer",
        function=function,
        arrays="torch",
        gradients=True,
        numerics={"bfloat16": _ROUNDED},
        takes=_is_mixtral,
        masks=False,
    )


transformers_eager = _layer("eager", _eager)
transformers_batched_mm = _layer("batched_mm", _batched)
transformers_grouped_mm = _layer("grouped_mm", _grouped)


def _jax_quantize(x: Any) -> Any:
    """What `jax.nn.scaled_dot_general` does to its operands; it has no public name of its own."""
    module: Any = importlib.import_module("jax._src.cudnn.scaled_matmul_stablehlo")
    return module.quantize(x, jax.nn.get_scaled_dot_general_config("mxfp8"))


jax_quantize = Implementation(
    name="JAX quantize, jitted",
    op="quantize",
    function=jax.jit(_jax_quantize),
    mx=MXSpec(),
    gradients=False,
    multiple_of={"k": 32},
    zero_rows=False,
)
jax_quantize_eager = dataclasses.replace(
    jax_quantize, name="JAX quantize, eager", function=_jax_quantize
)
