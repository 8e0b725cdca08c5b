"""Laguna: sigmoid scores with a selection bias; the scale multiplies the routed output."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

# `scale` and `logit_softcap` are 1 and None by default, and set in a release's config.json.
PRESETS = {
    "laguna": LayerSpec(
        d_model=2048,
        router=RouterSpec(
            num_experts=256,
            k=8,
            score="sigmoid",
            selection_bias=True,
            renormalize="sum",
            scale_site="output",
        ),
        experts=ExpertSpec(d_hidden=512),
        shared_d_hidden=512,
        name="laguna",
        source=(
            "rule: transformers 5.24.0, models/laguna/modeling_laguna.py; "
            "sizes: its configuration defaults"
        ),
    ),
}
