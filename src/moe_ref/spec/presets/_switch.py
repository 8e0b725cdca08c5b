"""Switch Transformers: one expert a token, and a capacity."""

from moe_ref.spec._capacity import CapacitySpec
from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

# Capacity counts within one sequence: call the layer with the tokens of one sequence, or vmap it.
# The router weight is stored in the dtype of the model and widened for the projection.
# Differs from transformers in: there the probabilities are rounded to the dtype of x before the
# arg-max, so in bfloat16 two of them may tie that differ in float32; here only the weight is.
PRESETS = {
    "switch-base": LayerSpec(
        d_model=768,
        router=RouterSpec(num_experts=8, k=1, projection_dtype="float32"),
        experts=ExpertSpec(d_hidden=3072, activation="relu", gated=False),
        capacity=CapacitySpec(expert_capacity=64, drop_order="token_major"),
        name="switch-base",
        source=(
            "rule: transformers 5.24.0, "
            "models/switch_transformers/modeling_switch_transformers.py; "
            "sizes: config.json of google/switch-base-8"
        ),
    ),
}
