"""DeepSeek: group-limited routing, shared experts, selection bias."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "deepseek-v3": LayerSpec(
        d_model=7168,
        router=RouterSpec(
            num_experts=256,
            k=8,
            score="sigmoid",
            selection_bias=True,
            num_groups=8,
            groups_kept=4,
            group_score="sum_top",
            group_top=2,
            renormalize="sum",
            renormalize_eps=1e-20,
            scale=2.5,
            param_dtype="float32",
            projection_dtype="float32",
            weight_dtype="float32",
        ),
        experts=ExpertSpec(d_hidden=2048),
        shared_d_hidden=2048,
        name="deepseek-v3",
        source="transformers 5.24.0, models/deepseek_v3/modeling_deepseek_v3.py",
    ),
}
