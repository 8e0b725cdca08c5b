"""What a router computes, as data."""

import dataclasses
import math
from typing import Literal

from moe_ref._errors import require, require_types
from moe_ref.spec._numerics import DTypeName

Score = Literal["softmax", "softmax_selected", "sigmoid", "sqrt_softplus", "none"]
GroupScore = Literal["none", "max", "sum_top"]
Renormalize = Literal["none", "sum", "clamp", "p_norm"]
ChooseBy = Literal["score", "logit"]
ScaleSite = Literal["weight", "output"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterSpec:
    r"""From hidden states to `k` expert ids and weights a token.

    With logits $l = x W^\top + \beta$, scores $s = \mathrm{score}(l)$ and selection bias $b$:
    the ids are the $k$ largest of $s + b$ (after the group rule), and the weights are
    $w = \mathrm{scale} \cdot \mathrm{renormalize}(s_{ids})$.

    Args:
        num_experts: $E$, experts with parameters.
        k: experts chosen for a token, in [1, num_experts + zero_experts].
        score: `softmax` over all experts; `softmax_selected`: choose by logit, then softmax over
            the chosen ones; `sigmoid`; `sqrt_softplus`: $\sqrt{\log(1 + e^l)}$; `none`: the logit.
        choose_by: the k largest `score`s, or the k largest `logit`s: different where scores
            saturate and tie. `softmax_selected` always chooses by logit.
        selection_bias: a bias $b$ added for the choice only, never to a weight.
        num_groups: consecutive groups of equal size; 1 means no groups.
        groups_kept: how many groups stay eligible; the others' choice scores become -inf.
        group_score: how a group is scored: its `max`, or `sum_top`: the sum of its `group_top`
            largest choice scores. `none` exactly when `num_groups` is 1.
        group_top: $m$ of `sum_top`.
        renormalize: `none`; `sum`: divide by (sum + eps); `clamp`: by max(sum, eps);
            `p_norm`: by $(\sum |w|^p)^{1/p}$.
        renormalize_eps: eps of `sum` and `clamp`.
        renormalize_p: p of `p_norm`.
        renormalize_only_above_one: leave a single choice (k = 1) as it is.
        scale: constant factor.
        scale_site: the factor multiplies each `weight`, or the routed `output` after combining.
        router_bias: the projection has a bias $\beta$.
        zero_experts: identity experts; their ids follow the real ones, `num_experts ...`.
        per_expert_scale: a learned factor of each expert multiplies its weights, last of all.
        logit_softcap: $c$ of $l \leftarrow c \tanh(l / c)$; None for none.
        hash_vocab: number of token ids of a fixed table token id -> experts; 0 for learned choice.
            Weights still come from the logits.
        param_dtype: dtype of the stored router weight; None: as the rest of the layer.
        projection_dtype: dtype of operands and result of $x W^\top$; None: that of x.
        score_dtype: dtype of scores and renormalisation; None: that of the logits.
        weight_dtype: dtype the final weights are rounded to; None: that of x.

    A named dtype is what the stage computes in, except that float64 inputs are never narrowed, and
    that parameters are stored in `param_dtype` or wider.

    Raises:
        ValueError: fields that contradict each other, naming them and their values.
    """

    num_experts: int
    k: int
    score: Score = "softmax"
    choose_by: ChooseBy = "score"
    selection_bias: bool = False
    num_groups: int = 1
    groups_kept: int = 1
    group_score: GroupScore = "none"
    group_top: int = 2
    renormalize: Renormalize = "none"
    renormalize_eps: float = 0.0
    renormalize_p: float = 1.0
    renormalize_only_above_one: bool = False
    scale: float = 1.0
    scale_site: ScaleSite = "weight"
    router_bias: bool = False
    zero_experts: int = 0
    per_expert_scale: bool = False
    logit_softcap: float | None = None
    hash_vocab: int = 0
    param_dtype: DTypeName | None = None
    projection_dtype: DTypeName | None = None
    score_dtype: DTypeName | None = "float32"
    weight_dtype: DTypeName | None = None

    @property
    def num_choices(self) -> int:
        """Width of the logits: real experts, then zero experts."""
        return self.num_experts + self.zero_experts

    def __post_init__(self):
        require_types(self)
        require(self.num_experts >= 1, "num_experts", "at least 1", self.num_experts)
        require(self.zero_experts >= 0, "zero_experts", "at least 0", self.zero_experts)
        require(self.hash_vocab >= 0, "hash_vocab", "at least 0", self.hash_vocab)
        total = (
            f"num_experts={self.num_experts}"
            if not self.zero_experts
            else f"num_experts + zero_experts={self.num_choices}"
        )
        require(1 <= self.k <= self.num_choices, "k", f"in [1, {total}]", self.k)
        self._check_groups()
        self._check_renormalize()
        cap = self.logit_softcap
        require(cap is None or cap > 0, "logit_softcap", "positive or None", cap)
        require(
            not (self.hash_vocab and self.selection_bias),
            "selection_bias",
            f"False where hash_vocab={self.hash_vocab} chooses the experts",
            self.selection_bias,
        )

    def _check_groups(self):
        groups, size = self.num_groups, self.num_choices
        require(groups >= 1, "num_groups", "at least 1", groups)
        kept = self.groups_kept
        require(1 <= kept <= groups, "groups_kept", f"in [1, num_groups={groups}]", kept)
        require(
            (groups == 1) == (self.group_score == "none"),
            "group_score",
            f"'none' exactly when num_groups is 1 (num_groups={groups})",
            repr(self.group_score),
        )
        if groups == 1:
            return
        zero = self.zero_experts
        require(not zero, "zero_experts", f"0 with num_groups={groups}", zero)
        require(
            size % groups == 0, "num_groups", f"a divisor of num_experts={self.num_experts}", groups
        )
        require(
            self.k <= kept * (size // groups),
            "k",
            f"at most groups_kept * num_experts / num_groups={kept * (size // groups)}",
            self.k,
        )
        require(
            self.group_score != "sum_top" or 1 <= self.group_top <= size // groups,
            "group_top",
            f"in [1, num_experts / num_groups={size // groups}]",
            self.group_top,
        )

    def _check_renormalize(self):
        eps, rule = self.renormalize_eps, self.renormalize
        require(math.isfinite(self.scale), "scale", "finite", self.scale)
        require(math.isfinite(eps) and eps >= 0, "renormalize_eps", "finite and at least 0", eps)
        require(
            eps == 0 or rule in ("sum", "clamp"),
            "renormalize_eps",
            f"0 with renormalize={rule!r}",
            eps,
        )
        require(rule != "clamp" or eps > 0, "renormalize_eps", "positive with 'clamp'", eps)
        p = self.renormalize_p
        require(math.isfinite(p) and p > 0, "renormalize_p", "positive and finite", p)
        require(p == 1 or rule == "p_norm", "renormalize_p", f"1 with renormalize={rule!r}", p)
        require(
            rule == "none" or self.score != "softmax_selected",
            "renormalize",
            "'none' with score='softmax_selected', which already sums to 1",
            repr(rule),
        )
        require(
            rule == "none" or self.score != "none",
            "renormalize",
            "'none' with score='none': logits may sum to 0",
            repr(rule),
        )
