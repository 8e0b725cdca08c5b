"""The router's projection."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype, stage_dtype
from moe_ref._typing import checked
from moe_ref.spec import RouterSpec


@checked
def router_logits(
    x: Float[Array, "tokens d_model"],
    weight: Float[Array, "choices d_model"],
    bias: Float[Array, " choices"] | None = None,
    *,
    spec: RouterSpec,
) -> Float[Array, "tokens choices"]:
    r"""Project tokens to one logit an expert.

    $$l = x W^\top + \beta, \qquad l \leftarrow c \tanh(l / c) \text{ with a softcap}$$

    Args:
        x: hidden states.
        weight: router weight; row e belongs to expert e, zero experts last.
        bias: $\beta$, required exactly when `spec.router_bias`.
        spec: `projection_dtype` (of operands and result) and `logit_softcap` are read.

    Returns:
        Logits in `projection_dtype`, summed in float32 at least and rounded once.

    Raises:
        ValueError: `weight` has not `spec.num_choices` rows, or `bias` contradicts the spec.

    Special cases:
        A NaN in one token reaches that token's logits only.

    Example:
        ```python
        import jax
        from moe_ref import routing, spec

        s = spec.RouterSpec(num_experts=4, k=2)
        x = jax.random.normal(jax.random.key(0), (3, 8))
        w = jax.random.normal(jax.random.key(1), (4, 8))
        assert routing.router_logits(x, w, spec=s).shape == (3, 4)
        ```
    """
    require(
        weight.shape[0] == spec.num_choices,
        "weight",
        f"one row for each of num_choices={spec.num_choices}",
        f"shape {weight.shape}",
    )
    require(
        (bias is not None) == spec.router_bias,
        "bias",
        f"given exactly when router_bias (router_bias={spec.router_bias})",
        "an array" if bias is not None else None,
    )
    dtype = stage_dtype(x.dtype, spec.projection_dtype)
    wide = accumulator_dtype(dtype)
    logits = lax.dot_general(
        x.astype(dtype),
        weight.astype(dtype),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=wide,
    )
    if bias is not None:
        logits = logits + bias.astype(wide)[None, :]
    if spec.logit_softcap is not None:
        cap = jnp.asarray(spec.logit_softcap, wide)
        logits = cap * jnp.tanh(logits / cap)
    return logits.astype(dtype)
