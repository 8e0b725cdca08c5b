"""Routers that differ in every stage of the rule."""

from moe_ref.spec import RouterSpec

RULES = {
    "softmax": RouterSpec(num_experts=8, k=3),
    "renormalised": RouterSpec(num_experts=8, k=3, renormalize="sum", scale=1.5),
    "selected": RouterSpec(num_experts=8, k=3, score="softmax_selected"),
    "raw": RouterSpec(num_experts=8, k=3, score="none", scale=0.5),
    "biased": RouterSpec(
        num_experts=8,
        k=3,
        score="sigmoid",
        selection_bias=True,
        renormalize="sum",
        renormalize_eps=1e-20,
    ),
    "by-logit": RouterSpec(
        num_experts=8, k=3, score="sigmoid", choose_by="logit", renormalize="clamp",
        renormalize_eps=0.5,
    ),
    "softplus": RouterSpec(
        num_experts=8, k=3, score="sqrt_softplus", renormalize="p_norm", renormalize_p=2.0
    ),
    "groups-by-max": RouterSpec(
        num_experts=8, k=3, num_groups=4, groups_kept=2, group_score="max", scale=4.0
    ),
    "groups-by-sum": RouterSpec(
        num_experts=12, k=3, score="sigmoid", selection_bias=True, num_groups=3, groups_kept=2,
        group_score="sum_top", group_top=3,
    ),
    "zero-experts": RouterSpec(
        num_experts=6, zero_experts=2, k=3, per_expert_scale=True, selection_bias=True
    ),
    "one": RouterSpec(num_experts=1, k=1),
    "all": RouterSpec(num_experts=4, k=4, score="sigmoid", renormalize="sum"),
}  # fmt: skip
