"""Routing rules for the checks of `route`."""

import dataclasses

from moe_ref.spec import RouterSpec

SIGMOID = RouterSpec(num_experts=8, k=3, score="sigmoid", selection_bias=True)
GROUPS = dataclasses.replace(
    SIGMOID, num_groups=4, groups_kept=2, group_score="sum_top", renormalize="sum"
)
RULES = {
    "softmax, renormalised": RouterSpec(num_experts=8, k=2, renormalize="sum"),
    "softmax": RouterSpec(num_experts=8, k=2),
    "softmax over the chosen": RouterSpec(num_experts=8, k=2, score="softmax_selected"),
    "softmax, max of groups, scaled": RouterSpec(
        num_experts=12, k=3, num_groups=4, groups_kept=2, group_score="max", scale=1.7
    ),
    "sigmoid, bias, top-2 of groups": dataclasses.replace(GROUPS, renormalize_eps=1e-20, scale=2.5),
    "sqrt-softplus, bias": RouterSpec(
        num_experts=8, k=3, score="sqrt_softplus", selection_bias=True, renormalize="sum"
    ),
    "softmax, p-norm": RouterSpec(num_experts=8, k=3, renormalize="p_norm", renormalize_p=3.0),
    "softmax, bias, clamped": RouterSpec(
        num_experts=8, k=3, selection_bias=True, renormalize="clamp", renormalize_eps=0.6
    ),
    "sigmoid, top-2 of groups of 4, large eps": RouterSpec(
        num_experts=16,
        k=3,
        score="sigmoid",
        num_groups=4,
        groups_kept=2,
        group_score="sum_top",
        group_top=2,
        renormalize="sum",
        renormalize_eps=0.3,
    ),
    "sigmoid, one choice is left alone": RouterSpec(
        num_experts=8, k=1, score="sigmoid", renormalize="sum", renormalize_only_above_one=True
    ),
    "softmax, ten choices": RouterSpec(num_experts=24, k=10, renormalize="sum", scale=1.5),
}
