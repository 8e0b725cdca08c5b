"""ERNIE 4.5: softmax scores with a selection bias, sum clamped from below."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "ernie4.5-moe": LayerSpec(
        d_model=2560,
        router=RouterSpec(
            num_experts=64,
            k=6,
            selection_bias=True,
            renormalize="clamp",
            renormalize_eps=1e-12,
            param_dtype="float32",
            projection_dtype="float32",
        ),
        experts=ExpertSpec(d_hidden=1536),
        shared_d_hidden=3072,
        name="ernie4.5-moe",
        source=(
            "rule: transformers 5.24.0, models/ernie4_5_moe/modeling_ernie4_5_moe.py; "
            "sizes: its configuration defaults (baidu/ERNIE-4.5-21B-A3B)"
        ),
    ),
}
