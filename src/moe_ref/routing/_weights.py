"""With what weight: gather, renormalise, scale, round."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype, stage_dtype
from moe_ref._typing import checked
from moe_ref.routing._divide import divide
from moe_ref.routing._ids import known
from moe_ref.routing._scores import softmax
from moe_ref.spec import RouterSpec


@checked
def combine_weights(
    scores: Float[Array, "tokens choices"],
    experts: Int[Array, "tokens k"],
    per_expert_scale: Float[Array, " choices"] | None = None,
    *,
    spec: RouterSpec,
    dtype: DTypeLike | None = None,
) -> Float[Array, "tokens k"]:
    r"""Weights of the chosen experts.

    $$w = \mathrm{scale} \cdot \frac{s_{ids}}{\sum_{ids} s + \epsilon} \cdot c_{ids}$$

    with the renormalisation and the scale of `spec`, and $c$ the per-expert scale.

    Args:
        scores: scores of all experts (`router_scores`); the logits for `softmax_selected`.
        experts: chosen ids; -1 is an empty slot. A repeated id counts in every slot it fills.
        per_expert_scale: $c$, required exactly when `spec.per_expert_scale`.
        spec: everything after the choice is read.
        dtype: what `weight_dtype=None` means: the dtype of the hidden states. None: of `scores`.

    Returns:
        Weights rounded once to `weight_dtype`; 0 in empty slots.

    Raises:
        ValueError: `per_expert_scale` contradicts the spec.

    Special cases:
        Where the denominator is exactly 0 (every chosen sigmoid underflowed) the weights are 0,
        with zero gradient. With k = 1 a renormalised weight is constant: the router then gets no
        gradient from the output, by definition.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import routing, spec

        s = spec.RouterSpec(num_experts=4, k=2, renormalize="sum", scale=2.0)
        w = routing.combine_weights(jnp.array([[0.4, 0.2, 0.3, 0.1]]), jnp.array([[0, 1]]), spec=s)
        assert abs(float(w.sum()) - 2.0) < 1e-6
        ```
    """
    require(
        (per_expert_scale is not None) == spec.per_expert_scale,
        "per_expert_scale",
        f"given exactly when spec.per_expert_scale (it is {spec.per_expert_scale})",
        "an array" if per_expert_scale is not None else None,
    )
    target = stage_dtype(dtype or scores.dtype, spec.weight_dtype)
    stage = stage_dtype(scores.dtype, spec.score_dtype)
    wide = accumulator_dtype(stage)
    index, valid = known(experts, count=scores.shape[1], otherwise=0)
    weights = jnp.take_along_axis(scores, index, axis=1).astype(wide)
    weights = jnp.where(valid, weights, jnp.zeros_like(weights))
    if spec.score == "softmax_selected":
        weights = softmax(weights, valid)
    elif not (spec.renormalize_only_above_one and spec.k == 1):
        weights = _renormalize(weights, spec)
    weights = weights.astype(stage).astype(wide)
    if spec.scale_site == "weight" and spec.scale != 1:
        weights = weights * jnp.asarray(spec.scale, wide)
    if per_expert_scale is not None:
        factor = jnp.where(valid, per_expert_scale.astype(wide)[index], jnp.zeros_like(weights))
        weights = weights * factor
    return weights.astype(target)


def _renormalize(weights: Float[Array, "tokens k"], spec: RouterSpec) -> Float[Array, "tokens k"]:
    if spec.renormalize == "none":
        return weights
    eps = jnp.asarray(spec.renormalize_eps, weights.dtype)
    if spec.renormalize == "p_norm":
        power = jnp.asarray(spec.renormalize_p, weights.dtype)
        size = jnp.abs(weights)
        # |0|^p has an infinite derivative for p < 1, so the root of an empty sum is never taken.
        filled = jnp.where(size > 0, size, jnp.ones_like(size))
        total = jnp.sum(jnp.where(size > 0, filled**power, size), axis=-1, keepdims=True)
        present = jnp.where(total > 0, total, jnp.ones_like(total))
        denominator = jnp.where(total > 0, present ** (1 / power), total)
    else:
        total = jnp.sum(weights, axis=-1, keepdims=True)
        denominator = total + eps if spec.renormalize == "sum" else jnp.maximum(total, eps)
    empty = denominator == 0
    safe = jnp.where(empty, jnp.ones_like(denominator), denominator)
    return jnp.where(empty, jnp.zeros_like(weights), divide(weights, safe))
