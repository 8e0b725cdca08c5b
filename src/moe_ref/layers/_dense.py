"""Every expert on every token."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moe_ref._numerics import accumulator_dtype
from moe_ref._varying import vary_together
from moe_ref.experts import Experts, feed_forward
from moe_ref.layers._execution import Execution
from moe_ref.layers._masked import masked_matmul
from moe_ref.spec import LayerSpec


class Dense(Execution):
    r"""Run every expert on every token and keep what was chosen: $\sum_e W_{te} f_e(x_t)$.

    The middle level of truth: nothing is sorted, gathered or dropped, so nothing can be misplaced.
    Time O(num_experts * tokens), one expert in memory at a time.

    Example:
        ```python
        import jax
        from moe_ref import layers, spec

        small = spec.preset("deepseek-v3").replace(
            d_model=8, d_hidden=4, num_experts=16, shared_d_hidden=4
        )
        layer = layers.MoE(small, key=jax.random.key(0))
        y, aux = layer(jax.random.normal(jax.random.key(1), (5, 8)), execution=layers.Dense())
        ```
    """

    def __call__(
        self,
        x: Float[Array, "tokens d_expert"],
        ids: Int[Array, "tokens k"],
        weights: Float[Array, "tokens k"],
        experts: Experts,
        *,
        spec: LayerSpec,
    ) -> tuple[Float[Array, "tokens d_expert"], Bool[Array, "tokens k"]]:
        """See `Execution`."""
        real = (ids >= 0) & (ids < spec.router.num_experts)
        return _dense(x, ids, weights, experts, spec), real


# Compiled by itself, so that eager calls find the same program.
@functools.partial(jax.jit, static_argnums=4)
def _dense(
    x: Float[Array, "tokens d_expert"],
    ids: Int[Array, "tokens k"],
    weights: Float[Array, "tokens k"],
    experts: Experts,
    spec: LayerSpec,
) -> Float[Array, "tokens d_expert"]:
    wide = accumulator_dtype(x.dtype)
    weights = weights.astype(wide)

    def add_expert(total, expert):
        number, parameters = expert
        # Widened once: where an expert is used once a slot, its gradients then add up unrounded.
        parameters = jax.tree.map(lambda leaf: leaf.astype(wide), parameters)
        here = ids == number
        run = functools.partial(
            feed_forward, experts=parameters, spec=spec.experts, weight_site=spec.weight_site
        )
        if spec.weight_site == "output":
            chosen = jnp.any(here, axis=1)[:, None]
            y = run(x, matmul=functools.partial(masked_matmul, filled=chosen))
            mine = jnp.where(here, weights, jnp.zeros_like(weights))
            # One slot after the other, as everywhere: a repeated expert counts twice.
            for slot in range(ids.shape[1]):
                total = total + mine[:, slot, None] * y
            return total, None
        for slot in range(ids.shape[1]):
            chosen = here[:, slot, None]
            weight = jnp.where(chosen, weights[:, slot, None], jnp.zeros_like(total[:, :1]))
            matmul = functools.partial(masked_matmul, filled=chosen)
            total = total + run(x, matmul=matmul, weights=weight)
        return total, None

    numbers = jnp.arange(spec.router.num_experts, dtype=ids.dtype)
    start, *_ = vary_together(jnp.zeros(x.shape, wide), x, ids, weights, *jax.tree.leaves(experts))
    total, _ = jax.lax.scan(add_expert, start, (numbers, experts))
    return total
