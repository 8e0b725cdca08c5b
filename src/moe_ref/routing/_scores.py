"""Score functions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from moe_ref._numerics import accumulator_dtype, stage_dtype
from moe_ref._typing import checked
from moe_ref.spec import RouterSpec


@checked
def router_scores(
    logits: Float[Array, "tokens choices"], *, spec: RouterSpec
) -> Float[Array, "tokens choices"]:
    r"""Turn logits into scores.

    $$s = \mathrm{softmax}(l),\quad \sigma(l),\quad \sqrt{\log(1 + e^l)},\quad \text{or } l$$

    Args:
        logits: raw router logits.
        spec: `score` and `score_dtype` are read; `softmax_selected` and `none` give the logits.

    Returns:
        Scores, computed in float32 at least and rounded once to `score_dtype`.

    Special cases:
        Softmax of a row that is all -inf is 0 everywhere, with zero gradient. $\sqrt{\log(1+e^l)}$
        keeps a finite gradient where $e^l$ underflows.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import routing, spec

        s = routing.router_scores(jnp.zeros((1, 4)), spec=spec.RouterSpec(num_experts=4, k=1))
        assert s.tolist() == [[0.25, 0.25, 0.25, 0.25]]
        ```
    """
    dtype = stage_dtype(logits.dtype, spec.score_dtype)
    wide = logits.astype(accumulator_dtype(dtype))
    if spec.score == "softmax":
        scores = softmax(wide)
    elif spec.score == "sigmoid":
        scores = jax.nn.sigmoid(wide)
    elif spec.score == "sqrt_softplus":
        scores = _sqrt_softplus(wide)
    else:
        scores = wide
    return scores.astype(dtype)


def softmax(
    logits: Float[Array, "tokens n"], valid: Bool[Array, "tokens n"] | None = None
) -> Float[Array, "tokens n"]:
    """Softmax over each row's valid entries; 0 elsewhere, and in a row of nothing but -inf."""
    if valid is not None:
        logits = jnp.where(valid, logits, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True, initial=-jnp.inf))
    exp = jnp.exp(logits - jnp.where(top == -jnp.inf, jnp.zeros_like(top), top))
    total = jnp.sum(exp, axis=-1, keepdims=True)
    return exp / jnp.where(total == 0, jnp.ones_like(total), total)


def _sqrt_softplus(logits: Float[Array, "tokens n"]) -> Float[Array, "tokens n"]:
    # Below -40 the value is exp(l / 2) to the last bit of float64, and sqrt's derivative at an
    # underflowed softplus would be inf * 0.
    far = logits < -40
    near = jnp.sqrt(jax.nn.softplus(jnp.where(far, jnp.zeros_like(logits), logits)))
    return jnp.where(far, jnp.exp(jnp.where(far, logits, jnp.zeros_like(logits)) / 2), near)
