"""Granite MoE: softmax over the chosen logits in float32."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "granitemoe": LayerSpec(
        d_model=1024,
        router=RouterSpec(num_experts=32, k=8, score="softmax_selected"),
        experts=ExpertSpec(d_hidden=512),
        name="granitemoe",
        source=(
            "rule: transformers 5.24.0, models/granitemoe/modeling_granitemoe.py; "
            "sizes: config.json of ibm-granite/granite-3.0-1b-a400m-base"
        ),
    ),
}
