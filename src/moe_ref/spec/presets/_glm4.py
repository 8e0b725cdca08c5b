"""GLM-4.5: the router of DeepSeek-V3 without groups."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec.presets._deepseek import v3_router

PRESETS = {
    "glm4-moe": LayerSpec(
        d_model=4096,
        router=v3_router(num_experts=128, k=8, num_groups=1, groups_kept=1),
        experts=ExpertSpec(d_hidden=1408),
        shared_d_hidden=1408,
        name="glm4-moe",
        source=(
            "rule: transformers 5.24.0, models/glm4_moe/modeling_glm4_moe.py; "
            "sizes: its configuration defaults (zai-org/GLM-4.5-Air)"
        ),
    ),
}
