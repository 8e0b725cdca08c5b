"""DBRX: softmax in the dtype of x, weights divided by their p-norm."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

PRESETS = {
    "dbrx": LayerSpec(
        d_model=6144,
        router=RouterSpec(
            num_experts=16, k=4, renormalize="p_norm", renormalize_p=1.0, score_dtype=None
        ),
        experts=ExpertSpec(d_hidden=10752),
        name="dbrx",
        source=(
            "rule: transformers 5.24.0, models/dbrx/modeling_dbrx.py; "
            "sizes: config.json of databricks/dbrx-instruct"
        ),
    ),
}
