"""LFM2-MoE: sigmoid scores in the dtype of x, an epsilon of 1e-6."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

# As in DeepSeek-V4, adding the float32 bias makes the choice in float32 over rounded scores.
PRESETS = {
    "lfm2-moe": LayerSpec(
        d_model=2048,
        router=RouterSpec(
            num_experts=32,
            k=4,
            score="sigmoid",
            selection_bias=True,
            renormalize="sum",
            renormalize_eps=1e-6,
            score_dtype=None,
        ),
        experts=ExpertSpec(d_hidden=1792),
        name="lfm2-moe",
        source=(
            "rule: transformers 5.24.0, models/lfm2_moe/modeling_lfm2_moe.py; "
            "sizes: its configuration defaults (LiquidAI/LFM2-8B-A1B)"
        ),
    ),
}
