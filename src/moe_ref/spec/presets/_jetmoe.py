"""JetMoE: softmax over the chosen logits, one bias added after combining."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

# The MLP block; the attention of JetMoE mixes experts too and is not described here.
PRESETS = {
    "jetmoe": LayerSpec(
        d_model=2048,
        router=RouterSpec(num_experts=8, k=2, score="softmax_selected"),
        experts=ExpertSpec(d_hidden=5632),
        output_bias=True,
        name="jetmoe",
        source=(
            "rule: transformers 5.24.0, models/jetmoe/modeling_jetmoe.py; "
            "sizes: its configuration defaults (jetmoe/jetmoe-8b)"
        ),
    ),
}
