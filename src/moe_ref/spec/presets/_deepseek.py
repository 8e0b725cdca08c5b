"""DeepSeek: group-limited routing, shared experts, selection bias, hash layers."""

from typing import Any

from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec._router import RouterSpec


def v3_router(*, num_groups: int, groups_kept: int, **fields: Any) -> RouterSpec:
    """The router of DeepSeek-V3, also of GLM-4.5 and Nemotron-H: everything in float32.

    Args:
        num_groups: groups of experts; 1 turns the group rule off.
        groups_kept: groups that stay eligible.
        **fields: sizes and scale.

    Returns:
        Its `RouterSpec`.
    """
    return RouterSpec(
        score="sigmoid",
        selection_bias=True,
        num_groups=num_groups,
        groups_kept=groups_kept,
        group_score="none" if num_groups == 1 else "sum_top",
        group_top=2,
        renormalize="sum",
        renormalize_eps=1e-20,
        param_dtype="float32",
        projection_dtype="float32",
        weight_dtype="float32",
        **fields,
    )


# Differs from transformers in: `masked_fill` there puts 0.0 where a group is rejected, here -inf:
# the same choice, since softmax scores are positive. `norm_topk_prob` is in the configuration and
# never read by the router, so nothing is renormalised.
_V2 = LayerSpec(
    d_model=5120,
    router=RouterSpec(
        num_experts=160,
        k=6,
        num_groups=8,
        groups_kept=3,
        group_score="max",
        scale=16.0,
        param_dtype="float32",
        projection_dtype="float32",
        weight_dtype="float32",
    ),
    experts=ExpertSpec(d_hidden=1536),
    shared_d_hidden=3072,
    name="deepseek-v2",
    source=(
        "rule: transformers 5.24.0, models/deepseek_v2/modeling_deepseek_v2.py; "
        "sizes: config.json of deepseek-ai/DeepSeek-V2"
    ),
)

_V3 = LayerSpec(
    d_model=7168,
    router=v3_router(num_experts=256, k=8, num_groups=8, groups_kept=4, scale=2.5),
    experts=ExpertSpec(d_hidden=2048),
    shared_d_hidden=2048,
    name="deepseek-v3",
    source=(
        "rule: transformers 5.24.0, models/deepseek_v3/modeling_deepseek_v3.py; "
        "sizes: config.json of deepseek-ai/DeepSeek-V3"
    ),
)

# Router, scores and weights all stay in the dtype of x; only the selection bias is float32, so the
# choice is made in float32 over scores that were rounded to that dtype.
_V4 = LayerSpec(
    d_model=4096,
    router=RouterSpec(
        num_experts=256,
        k=6,
        score="sqrt_softplus",
        selection_bias=True,
        renormalize="sum",
        renormalize_eps=1e-20,
        scale=1.5,
        score_dtype=None,
    ),
    experts=ExpertSpec(d_hidden=2048, swiglu_limit=10.0),
    shared_d_hidden=2048,
    name="deepseek-v4",
    source=(
        "rule: transformers 5.24.0, models/deepseek_v4/modeling_deepseek_v4.py; "
        "sizes: its configuration defaults (DeepSeek-V4-Flash)"
    ),
)

PRESETS = {
    "deepseek-v2": _V2,
    "deepseek-v3": _V3,
    "deepseek-v4": _V4,
    # The first layers: the experts of a token follow from its id alone, the weights are learned.
    "deepseek-v4-hash": _V4.replace(
        selection_bias=False, hash_vocab=129280, name="deepseek-v4-hash"
    ),
}
