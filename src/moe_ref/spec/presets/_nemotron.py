"""Nemotron-H: the router of DeepSeek-V3, squared-ReLU experts without a gate, maybe in a latent."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec.presets._deepseek import v3_router

# Larger members of the family set `d_latent` (1024 in Nemotron 3 Super): the routed experts then
# work on a projection of x, router and shared expert on x itself.
PRESETS = {
    "nemotron-h": LayerSpec(
        d_model=2688,
        router=v3_router(num_experts=128, k=6, num_groups=1, groups_kept=1, scale=2.5),
        experts=ExpertSpec(d_hidden=1856, activation="relu_squared", gated=False),
        shared_d_hidden=3712,
        name="nemotron-h",
        source=(
            "rule: transformers 5.24.0, models/nemotron_h/modeling_nemotron_h.py; "
            "sizes: config.json of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"
        ),
    ),
}
