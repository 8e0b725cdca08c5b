"""LongCat-Flash: softmax over real and identity experts, weights not renormalised."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "longcat-flash": LayerSpec(
        d_model=6144,
        router=RouterSpec(
            num_experts=512,
            k=12,
            selection_bias=True,
            scale=6.0,
            zero_experts=256,
            projection_dtype="float32",
            weight_dtype="float32",
        ),
        experts=ExpertSpec(d_hidden=2048),
        name="longcat-flash",
        source=(
            "rule: transformers 5.24.0, models/longcat_flash/modeling_longcat_flash.py; "
            "sizes: its configuration defaults (meituan-longcat/LongCat-Flash-Chat)"
        ),
    ),
}
