"""Jamba: softmax over all experts, the chosen weights left as they are."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "jamba": LayerSpec(
        d_model=4096,
        router=RouterSpec(num_experts=16, k=2),
        experts=ExpertSpec(d_hidden=14336),
        name="jamba",
        source=(
            "rule: transformers 5.24.0, models/jamba/modeling_jamba.py; "
            "sizes: its configuration defaults (ai21labs/Jamba-v0.1)"
        ),
    ),
}
