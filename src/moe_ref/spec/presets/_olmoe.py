"""OLMoE: softmax over all experts, the chosen weights left as they are."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "olmoe-1b-7b": LayerSpec(
        d_model=2048,
        router=RouterSpec(num_experts=64, k=8),
        experts=ExpertSpec(d_hidden=1024),
        name="olmoe-1b-7b",
        source=(
            "rule: transformers 5.24.0, models/olmoe/modeling_olmoe.py; "
            "sizes: config.json of allenai/OLMoE-1B-7B-0924"
        ),
    ),
}
