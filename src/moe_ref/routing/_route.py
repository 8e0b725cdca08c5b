"""Routing in one call."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype, float_dtype
from moe_ref._typing import checked
from moe_ref.routing._choose import choose
from moe_ref.routing._ids import known
from moe_ref.routing._routing import Routing
from moe_ref.routing._scores import router_scores
from moe_ref.routing._weights import combine_weights
from moe_ref.spec import RouterSpec


@checked
def route(
    logits: Float[Array, "tokens choices"],
    spec: RouterSpec,
    bias: Float[Array, " choices"] | None = None,
    mask: Bool[Array, " tokens"] | None = None,
    *,
    experts: Int[Array, "tokens k"] | None = None,
    per_expert_scale: Float[Array, " choices"] | None = None,
    dtype: DTypeLike | None = None,
) -> Routing:
    r"""Choose experts and weigh them.

    $$s = \mathrm{score}(l), \quad ids = \mathrm{top}_k(s + b), \quad
      w = \mathrm{scale} \cdot \mathrm{renormalize}(s_{ids})$$

    Args:
        logits: raw router logits (`router_logits`).
        spec: the rule.
        bias: selection bias $b$; None means zero. Only where `spec.selection_bias`.
        mask: True for real tokens; None means all are.
        experts: recorded ids to use in place of the choice (router replay, hash routing); the
            weights are computed from the live scores, so the router still gets its gradient.
            Ids may repeat; -1 is an empty slot.
        per_expert_scale: learned factor of each expert, where the spec has one.
        dtype: dtype of the hidden states, for `weight_dtype=None`; None: that of `logits`.

    Returns:
        The `Routing`. Padding tokens have ids -1, weights 0 and logits 0.

    Raises:
        ValueError: arguments that contradict the spec or each other.

    Special cases:
        Ties: score descending, then index ascending. The bias steers the choice only: no weight
        and no gradient depends on it. The contents of padding tokens, NaN included, reach nothing.

    Complexity:
        O(tokens * choices * log k) time.

    Example:
        ```python
        import jax
        from moe_ref import routing, spec

        s = spec.RouterSpec(num_experts=8, k=2, score="sigmoid", renormalize="sum")
        r = routing.route(jax.random.normal(jax.random.key(0), (5, 8)), s)
        assert r.experts.shape == r.weights.shape == (5, 2)
        ```
    """
    require(
        logits.shape[1] == spec.num_choices,
        "logits",
        f"one column for each of num_choices={spec.num_choices}",
        f"shape {logits.shape}",
    )
    require(
        bias is None or spec.selection_bias,
        "bias",
        "None with selection_bias=False",
        "an array",
    )
    require(
        experts is not None or not spec.hash_vocab,
        "experts",
        f"given with hash_vocab={spec.hash_vocab}: the table's rows for the tokens",
        None,
    )
    if experts is not None:
        require(experts.shape[1] == spec.k, "experts", f"of k={spec.k} columns", experts.shape)
    if mask is not None:
        logits = jnp.where(mask[:, None], logits, jnp.zeros_like(logits))
    scores = router_scores(logits, spec=spec)
    if experts is None:
        by_logit = spec.choose_by == "logit" or spec.score == "softmax_selected"
        choice = logits if by_logit else scores
        choice = choice.astype(accumulator_dtype(choice.dtype))
        if bias is not None:
            choice = choice + bias.astype(choice.dtype)[None, :]
        experts = choose(choice, spec=spec)
    else:
        experts, _ = known(experts, count=spec.num_choices, otherwise=-1)
    if mask is not None:
        experts = jnp.where(mask[:, None], experts, jnp.full_like(experts, -1))
    weights = combine_weights(
        scores,
        experts,
        per_expert_scale,
        spec=spec,
        dtype=logits.dtype if dtype is None else float_dtype(dtype),
    )
    return Routing(experts, weights, scores, logits)
