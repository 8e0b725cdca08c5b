"""gpt-oss: softmax over the chosen logits in their own dtype, biases, clamped SwiGLU."""

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec

_GPT_OSS = LayerSpec(
    d_model=2880,
    router=RouterSpec(
        num_experts=128, k=4, score="softmax_selected", router_bias=True, score_dtype=None
    ),
    experts=ExpertSpec(
        d_hidden=2880, expert_bias=True, swiglu_alpha=1.702, swiglu_limit=7.0, up_offset=1.0
    ),
    name="gpt-oss-120b",
    source=(
        "rule: transformers 5.24.0, models/gpt_oss/modeling_gpt_oss.py; "
        "sizes: config.json of openai/gpt-oss-120b"
    ),
)

PRESETS = {
    "gpt-oss-120b": _GPT_OSS,
    "gpt-oss-20b": _GPT_OSS.replace(
        num_experts=32,
        name="gpt-oss-20b",
        source=(
            "rule: transformers 5.24.0, models/gpt_oss/modeling_gpt_oss.py; "
            "sizes: config.json of openai/gpt-oss-20b"
        ),
    ),
}
