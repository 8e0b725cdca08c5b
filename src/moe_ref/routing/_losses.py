"""Auxiliary losses."""

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype
from moe_ref._typing import checked
from moe_ref._varying import over_axes
from moe_ref.routing._divide import divide
from moe_ref.routing._load import expert_load
from moe_ref.routing._routing import Routing
from moe_ref.routing._scores import softmax
from moe_ref.spec import RouterSpec


@checked
def balance_loss(
    routing: Routing,
    *,
    spec: RouterSpec,
    mask: Bool[Array, " tokens"] | None = None,
    divide_by_k: bool = True,
    axis_names: tuple[str, ...] = (),
) -> Float[Array, ""]:
    r"""Load-balancing loss of one layer over one batch.

    $$E \sum_e f_e P_e, \quad f_e = \frac{n_e}{T k}, \quad
      P_e = \frac{1}{T} \sum_t \frac{s_{te}}{\sum_{e'} s_{te'}}$$

    with $n_e$ the counts before dropping. Sigmoid and sqrt-softplus scores are normalised to sum
    to 1 per token; for `none` and `softmax_selected` P is the softmax of the logits.

    Args:
        routing: result of `route`.
        spec: `score` is read.
        mask: True for real tokens.
        divide_by_k: True: 1 at balance (Megatron-LM, MegaBlocks). False: k at balance
            (transformers).
        axis_names: mesh axes that the batch is divided over, inside `jax.shard_map`: counts and
            probabilities are summed over them before they are multiplied.

    Returns:
        A float32 scalar at least; 0, with zero gradient, if every token is padding.

    References:
        Fedus et al., Switch Transformers, 2022, equation 4.
    """
    wide = accumulator_dtype(routing.scores.dtype)
    if spec.score in ("none", "softmax_selected"):
        probabilities = softmax(routing.logits.astype(wide))
    else:
        scores = routing.scores.astype(wide)
        total = jnp.sum(scores, axis=-1, keepdims=True)
        probabilities = divide(scores, jnp.where(total == 0, jnp.ones_like(total), total))
    tokens, choices = probabilities.shape
    if mask is not None:
        require(mask.shape == (tokens,), "mask", f"of shape ({tokens},)", mask.shape)
    kept = None if mask is None else jnp.broadcast_to(mask[:, None], routing.experts.shape)
    counts = expert_load(routing.experts, num_experts=choices, kept=kept)
    counts = over_axes(counts, axis_names).astype(wide)
    if mask is not None:
        probabilities = jnp.where(mask[:, None], probabilities, jnp.zeros_like(probabilities))
    real = _number(tokens, mask, axis_names).astype(wide)
    fractions = counts / (real * (spec.k if divide_by_k else 1))
    return choices * jnp.sum(
        fractions * over_axes(jnp.sum(probabilities, axis=0), axis_names) / real
    )


@checked
def z_loss(
    logits: Float[Array, "tokens choices"],
    *,
    mask: Bool[Array, " tokens"] | None = None,
    axis_names: tuple[str, ...] = (),
) -> Float[Array, ""]:
    r"""Router z-loss: $\frac{1}{T} \sum_t \left(\log \sum_e e^{l_{te}}\right)^2$.

    Args:
        logits: raw router logits.
        mask: True for real tokens.
        axis_names: mesh axes that the batch is divided over, inside `jax.shard_map`.

    Returns:
        A float32 scalar at least; 0, with zero gradient, if every token is padding.

    References:
        Zoph et al., ST-MoE, 2022, equation 5.
    """
    logits = logits.astype(accumulator_dtype(logits.dtype))
    if mask is not None:
        logits = jnp.where(mask[:, None], logits, jnp.zeros_like(logits))
    squares = jnp.square(logsumexp(logits, axis=-1))
    if mask is not None:
        squares = jnp.where(mask, squares, jnp.zeros_like(squares))
    total = over_axes(jnp.sum(squares), axis_names)
    return total / _number(logits.shape[0], mask, axis_names).astype(total.dtype)


def _number(
    tokens: int, mask: Bool[Array, " tokens"] | None, axis_names: tuple[str, ...]
) -> Int[Array, ""]:
    """Real tokens of the batch, at least 1."""
    own = jnp.asarray(tokens, jnp.int32) if mask is None else jnp.sum(mask, dtype=jnp.int32)
    return jnp.maximum(over_axes(own, axis_names), 1)
