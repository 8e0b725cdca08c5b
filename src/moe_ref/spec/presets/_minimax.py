"""MiniMax-M2: sigmoid scores with a selection bias, renormalised without an epsilon."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "minimax-m2": LayerSpec(
        d_model=3072,
        router=RouterSpec(
            num_experts=256,
            k=8,
            score="sigmoid",
            selection_bias=True,
            renormalize="sum",
            weight_dtype="float32",
        ),
        experts=ExpertSpec(d_hidden=1536),
        name="minimax-m2",
        source=(
            "rule: transformers 5.24.0, models/minimax_m2/modeling_minimax_m2.py; "
            "sizes: its configuration defaults (MiniMaxAI/MiniMax-M2)"
        ),
    ),
}
