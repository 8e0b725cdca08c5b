"""Noise for the router's input, and for nothing else."""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from moe_ref._errors import require
from moe_ref._typing import checked


@checked
def jitter(
    x: Float[Array, "tokens d_model"], key: PRNGKeyArray, *, eps: float | int
) -> Float[Array, "tokens d_model"]:
    r"""Multiply every value by its own $U(1 - \epsilon, 1 + \epsilon)$.

    Pass the result as `router_input` of a layer: the experts then read the clean `x`.

    Args:
        x: hidden states.
        key: random key.
        eps: $\epsilon$, in [0, 1).

    Returns:
        The noisy copy.

    Raises:
        ValueError: `eps` out of range.

    Differs from transformers 5.24 in:
        1. Mixtral, MiniMax, DBRX and PhiMoE scale the hidden states in place, so their experts
           read the noise too.
    """
    require(0 <= eps < 1, "eps", "in [0, 1)", eps)
    return x * jax.random.uniform(key, x.shape, x.dtype, 1 - eps, 1 + eps)
