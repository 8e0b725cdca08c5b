"""Llama 4: chosen by logit, sigmoid weights that multiply the expert's input."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "llama4-scout": LayerSpec(
        d_model=5120,
        router=RouterSpec(num_experts=16, k=1, score="sigmoid", choose_by="logit"),
        experts=ExpertSpec(d_hidden=8192),
        weight_site="input",
        shared_d_hidden=8192,
        name="llama4-scout",
        source=(
            "rule: transformers 5.24.0, models/llama4/modeling_llama4.py; "
            "sizes: config.json of meta-llama/Llama-4-Scout-17B-16E"
        ),
    ),
}
