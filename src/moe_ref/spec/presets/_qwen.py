"""Qwen: softmax over all experts in float32, weights cast back; a gated shared expert in some."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

# `norm_topk_prob` is False by default in transformers; what a release uses is in its config.json.
_QWEN3 = LayerSpec(
    d_model=2048,
    router=RouterSpec(num_experts=128, k=8, renormalize="sum"),
    experts=ExpertSpec(d_hidden=768),
    name="qwen3-30b-a3b",
    source=(
        "rule: transformers 5.24.0, models/qwen3_moe/modeling_qwen3_moe.py; "
        "sizes: config.json of Qwen/Qwen3-30B-A3B"
    ),
)

PRESETS = {
    "qwen2-57b-a14b": LayerSpec(
        d_model=3584,
        router=RouterSpec(num_experts=64, k=8),
        experts=ExpertSpec(d_hidden=2560),
        shared_d_hidden=20480,
        shared_gate=True,
        name="qwen2-57b-a14b",
        source=(
            "rule: transformers 5.24.0, models/qwen2_moe/modeling_qwen2_moe.py; "
            "sizes: config.json of Qwen/Qwen2-57B-A14B"
        ),
    ),
    "qwen3-30b-a3b": _QWEN3,
    "qwen3-235b-a22b": _QWEN3.replace(
        d_model=4096,
        d_hidden=1536,
        name="qwen3-235b-a22b",
        source=(
            "rule: transformers 5.24.0, models/qwen3_moe/modeling_qwen3_moe.py; "
            "sizes: config.json of Qwen/Qwen3-235B-A22B"
        ),
    ),
    "qwen3-next": LayerSpec(
        d_model=2048,
        router=RouterSpec(num_experts=512, k=10, renormalize="sum"),
        experts=ExpertSpec(d_hidden=512),
        shared_d_hidden=512,
        shared_gate=True,
        name="qwen3-next",
        source=(
            "rule: transformers 5.24.0, models/qwen3_next/modeling_qwen3_next.py; "
            "sizes: its configuration defaults (Qwen/Qwen3-Next-80B-A3B)"
        ),
    ),
}
