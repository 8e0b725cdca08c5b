"""The router as a module."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from moe_ref._errors import require
from moe_ref._numerics import float_dtype, wider
from moe_ref._typing import checked
from moe_ref.routing import Routing, route, router_logits
from moe_ref.spec import RouterSpec


class Router(eqx.Module):
    """Parameters of a router; `routing` holds the mathematics.

    Attributes:
        weight: projection, one row an expert, zero experts last.
        bias: bias of the projection.
        selection_bias: steers the choice only; it gets no gradient (`update_selection_bias`).
        per_expert_scale: learned factor of each expert's weight.
        table: experts of each token id, for hash routing.
        spec: the rule.
    """

    weight: Float[Array, "choices d_model"]
    bias: Float[Array, " choices"] | None
    selection_bias: Float[Array, " choices"] | None
    per_expert_scale: Float[Array, " choices"] | None
    table: Int[Array, "vocab k"] | None
    spec: RouterSpec = eqx.field(static=True)

    @checked
    def __init__(
        self,
        spec: RouterSpec,
        *,
        d_model: int,
        key: PRNGKeyArray,
        dtype: DTypeLike = jnp.float32,
    ):
        """Draw parameters.

        Args:
            spec: the rule.
            d_model: width of the tokens.
            key: random key.
            dtype: dtype of the parameters; the router weight may be wider (`spec.param_dtype`).

        Raises:
            ValueError: `dtype` is no floating-point dtype.
        """
        dtype = float_dtype(dtype)
        dtype = wider(dtype, spec.param_dtype or dtype)
        choices = spec.num_choices
        weight_key, table_key = jax.random.split(key)
        self.weight = jax.random.normal(weight_key, (choices, d_model), dtype) * d_model**-0.5
        self.bias = jnp.zeros(choices, dtype) if spec.router_bias else None
        steering = wider(dtype, jnp.float32)
        self.selection_bias = jnp.zeros(choices, steering) if spec.selection_bias else None
        self.per_expert_scale = jnp.ones(choices, dtype) if spec.per_expert_scale else None
        draw = jax.vmap(lambda k: jax.random.choice(k, choices, (spec.k,), replace=False))
        self.table = (
            draw(jax.random.split(table_key, spec.hash_vocab)).astype(jnp.int32)
            if spec.hash_vocab
            else None
        )
        self.spec = spec

    @checked
    def __call__(
        self,
        x: Float[Array, "tokens d_model"],
        *,
        mask: Bool[Array, " tokens"] | None = None,
        experts: Int[Array, "tokens k"] | None = None,
        token_ids: Int[Array, " tokens"] | None = None,
        dtype: DTypeLike | None = None,
    ) -> Routing:
        """Route tokens.

        Args:
            x: hidden states.
            mask: True for real tokens.
            experts: recorded ids to use in place of the choice.
            token_ids: vocabulary ids, for hash routing; in [0, hash_vocab), else no expert.
            dtype: dtype of the hidden states the experts read; None: that of `x`.

        Returns:
            The `Routing`.

        Raises:
            ValueError: arguments that contradict the spec or each other.
        """
        width = self.weight.shape[1]
        require(x.shape[1] == width, "x", f"of width d_model={width}", f"shape {x.shape}")
        if self.table is not None and experts is None:
            vocab = self.spec.hash_vocab
            if token_ids is None:
                raise ValueError(f"`token_ids` must be given with hash_vocab={vocab}; got None.")
            known = (token_ids >= 0) & (token_ids < vocab)
            row = self.table[jnp.where(known, token_ids, jnp.zeros_like(token_ids))]
            experts = jnp.where(known[:, None], row, jnp.full_like(row, -1))
        if mask is not None:
            x = jnp.where(mask[:, None], x, jnp.zeros_like(x))
        logits = router_logits(x, self.weight, self.bias, spec=self.spec)
        return route(
            logits,
            self.spec,
            self.selection_bias,
            mask,
            experts=experts,
            per_expert_scale=self.per_expert_scale,
            dtype=dtype or x.dtype,
        )
