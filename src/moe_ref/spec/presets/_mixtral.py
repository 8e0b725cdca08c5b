"""Mixtral: softmax over all experts, then the chosen weights renormalised and kept in float32."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

_MIXTRAL = LayerSpec(
    d_model=4096,
    router=RouterSpec(num_experts=8, k=2, renormalize="sum", weight_dtype="float32"),
    experts=ExpertSpec(d_hidden=14336),
    name="mixtral-8x7b",
    source=(
        "rule: transformers 5.24.0, models/mixtral/modeling_mixtral.py; "
        "sizes: config.json of mistralai/Mixtral-8x7B-v0.1"
    ),
)

PRESETS = {
    "mixtral-8x7b": _MIXTRAL,
    "mixtral-8x22b": _MIXTRAL.replace(
        d_model=6144,
        d_hidden=16384,
        name="mixtral-8x22b",
        source=(
            "rule: transformers 5.24.0, models/mixtral/modeling_mixtral.py; "
            "sizes: config.json of mistralai/Mixtral-8x22B-v0.1"
        ),
    ),
}
