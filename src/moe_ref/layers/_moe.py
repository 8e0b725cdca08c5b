"""The Mixture-of-Experts layer."""

import functools
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype, float_dtype
from moe_ref._typing import checked
from moe_ref._varying import over_axes
from moe_ref.experts import Experts, feed_forward
from moe_ref.layers._assemble import assemble
from moe_ref.layers._aux import Aux, Losses
from moe_ref.layers._capacity import Capacity
from moe_ref.layers._dropless import Dropless
from moe_ref.layers._execution import Execution
from moe_ref.layers._masked import masked_matmul
from moe_ref.layers._router import Router
from moe_ref.routing import Routing, balance_loss, expert_load, z_loss
from moe_ref.spec import ExpertSpec, LayerSpec


class MoE(eqx.Module):
    r"""A Mixture-of-Experts layer.

    $$y = \sum_j w_j\,\mathrm{expert}_{id_j}(x) + \mathrm{shared}(x)\,\sigma(x \cdot g) + b$$

    Attributes:
        router: parameters of the router.
        experts: parameters of the routed experts.
        shared: parameters of the shared expert.
        shared_gate: $g$.
        latent_in: projection to what the experts read.
        latent_out: projection back.
        output_bias: $b$.
        spec: what is computed.

    Example:
        ```python
        import jax
        from moe_ref import layers, spec

        small = spec.preset("qwen3-30b-a3b").replace(d_model=16, d_hidden=8, num_experts=16)
        layer = layers.MoE(small, key=jax.random.key(0))
        y, aux = layer(jax.random.normal(jax.random.key(1), (10, 16)))
        assert y.shape == (10, 16) and int(aux.load.sum()) == 10 * small.router.k
        ```
    """

    router: Router
    experts: Experts
    shared: Experts | None
    shared_gate: Float[Array, " d_model"] | None
    latent_in: Float[Array, "d_model d_latent"] | None
    latent_out: Float[Array, "d_latent d_model"] | None
    output_bias: Float[Array, " d_model"] | None
    spec: LayerSpec = eqx.field(static=True)

    @checked
    def __init__(self, spec: LayerSpec, *, key: PRNGKeyArray, dtype: DTypeLike = jnp.float32):
        """Draw parameters: normal with variance 1 / fan-in, biases 0.

        Args:
            spec: what is computed.
            key: random key.
            dtype: dtype of the parameters.

        Raises:
            ValueError: `dtype` is no floating-point dtype.
        """
        dtype = float_dtype(dtype)
        keys = jax.random.split(key, 6)
        d, latent = spec.d_model, spec.d_latent
        self.router = Router(spec.router, d_model=d, key=keys[0], dtype=dtype)
        real = (spec.router.num_experts,)
        self.experts = _draw_experts(keys[1], real, spec.d_expert, spec.experts, dtype)
        self.shared = _draw_experts(keys[2], (), d, spec.shared, dtype) if spec.shared else None
        self.shared_gate = _normal(keys[3], (d,), d, dtype) if spec.shared_gate else None
        self.latent_in = _normal(keys[4], (d, latent), d, dtype) if latent else None
        self.latent_out = _normal(keys[5], (latent, d), latent, dtype) if latent else None
        self.output_bias = jnp.zeros(d, dtype) if spec.output_bias else None
        self.spec = spec

    @classmethod
    @checked
    def from_arrays(cls, spec: LayerSpec, arrays: Mapping[str, Any]) -> "MoE":
        """Build a layer from given parameters; none is left random.

        Args:
            spec: what is computed.
            arrays: nested mapping with the names of the attributes, for example
                `{"router": {"weight": ...}, "experts": {"w_in": ..., "w_out": ...}}`.

        Returns:
            The layer.

        Raises:
            ValueError: a parameter is missing, unknown or of the wrong shape, by name.
        """
        like = eqx.filter_eval_shape(lambda: cls(spec, key=jax.random.key(0)))
        return assemble(like, arrays)

    @checked
    def __call__(
        self,
        x: Float[Array, "tokens d_model"],
        *,
        execution: Execution | None = None,
        routing: Routing | Int[Array, "tokens k"] | None = None,
        mask: Bool[Array, " tokens"] | None = None,
        token_ids: Int[Array, " tokens"] | None = None,
        router_input: Float[Array, "tokens d_model"] | None = None,
    ) -> tuple[Float[Array, "tokens d_model"], Aux]:
        """Apply the layer.

        Args:
            x: tokens, of the parameters' dtype.
            execution: how to run the routed experts; None: `Capacity()` if the spec has a
                capacity, else `Dropless()`.
            routing: recorded routing, or its ids: these experts are used, and the weights are
                recomputed from the live scores.
            mask: True for real tokens; the output of the others is 0.
            token_ids: vocabulary ids, for hash routing.
            router_input: what the router reads if not `x` (jitter, a separate norm).

        Returns:
            Output of the dtype of `x`, summed in float32 at least and rounded once, and the `Aux`.

        Raises:
            ValueError: wrong shapes or dtypes, or arguments that contradict the spec.

        Special cases:
            Padding tokens and empty slots take part in nothing, their NaNs included. A NaN in one
            token or in one expert's weights reaches only what depends on it.
        """
        spec = self.spec
        require(x.shape[1] == spec.d_model, "x", f"of width d_model={spec.d_model}", x.shape)
        dtype = self.experts.w_in.dtype
        require(x.dtype == dtype, "x", f"of the parameters' dtype {dtype}", x.dtype)
        self._require_one_dtype(dtype)
        router_input = x if router_input is None else router_input
        if mask is not None:
            x = jnp.where(mask[:, None], x, jnp.zeros_like(x))
        recorded = routing.experts if isinstance(routing, Routing) else routing
        if execution is None:
            execution = Capacity() if spec.capacity else Dropless()
        result = execution.per_token(
            _route, self.router, router_input, mask, recorded, token_ids, dtype=x.dtype
        )
        every = jnp.ones((x.shape[0], 1), bool)
        h = x
        if self.latent_in is not None:
            h = masked_matmul(x, self.latent_in, every).astype(x.dtype)
        routed, kept = execution(h, result.experts, result.weights, self.experts, spec=spec)
        routed, kept = _add_zero_experts(routed, kept, h, result, spec)
        if spec.router.scale_site == "output":
            routed = routed * jnp.asarray(spec.router.scale, routed.dtype)
        if self.latent_out is not None:
            routed = masked_matmul(routed.astype(x.dtype), self.latent_out, every)
        y = routed
        if self.shared is not None:
            y = y + self._shared(x)
        if self.output_bias is not None:
            y = y + self.output_bias.astype(y.dtype)[None, :]
        if mask is not None:
            y = jnp.where(mask[:, None], y, jnp.zeros_like(y))
        choices, axes = spec.router.num_choices, execution.token_axes()
        counted = functools.partial(expert_load, result.experts, num_experts=choices)
        aux = Aux(
            routing=result,
            load=over_axes(counted(), axes),
            kept=over_axes(counted(kept=kept), axes),
            losses=Losses(
                balance=balance_loss(result, spec=spec.router, mask=mask, axis_names=axes),
                z=z_loss(result.logits, mask=mask, axis_names=axes),
            ),
            overflow=execution.overflow(result.experts, kept, spec=spec),
        )
        return y.astype(x.dtype), aux

    def _require_one_dtype(self, dtype: DTypeLike) -> None:
        """Operands are never promoted silently; only the router may be stored wider."""
        rest = {
            name: getattr(self, name)
            for name in (
                "experts",
                "shared",
                "shared_gate",
                "latent_in",
                "latent_out",
                "output_bias",
            )
        }
        for path, leaf in jax.tree_util.tree_flatten_with_path(rest)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            require(leaf.dtype == dtype, name, f"of dtype {dtype}, as experts.w_in", leaf.dtype)

    def _shared(self, x: Float[Array, "tokens d_model"]) -> Float[Array, "tokens d_model"]:
        every = jnp.ones((x.shape[0], 1), bool)

        def matmul(rows, weight):
            return masked_matmul(rows, weight, every)

        assert self.shared is not None
        assert self.spec.shared is not None
        y = feed_forward(x, self.shared, spec=self.spec.shared, matmul=matmul)
        if self.shared_gate is None:
            return y
        return y * jax.nn.sigmoid(matmul(x, self.shared_gate[:, None]))


def _route(router: Router, x, mask, recorded, token_ids, *, dtype) -> Routing:
    return router(x, mask=mask, experts=recorded, token_ids=token_ids, dtype=dtype)


def _add_zero_experts(routed, kept, h, result: Routing, spec: LayerSpec):
    if not spec.router.zero_experts:
        return routed, kept
    zero = result.experts >= spec.router.num_experts
    wide = accumulator_dtype(h.dtype)
    weight = jnp.where(zero, result.weights.astype(wide), jnp.zeros_like(result.weights, wide))
    some = jnp.any(zero, axis=1)[:, None]
    copy = jnp.where(some, h.astype(wide), jnp.zeros_like(h, wide))
    return routed + jnp.sum(weight, axis=1)[:, None] * copy, kept | zero


def _draw_experts(key, lead: tuple[int, ...], width: int, spec: ExpertSpec, dtype) -> Experts:
    first, second = jax.random.split(key)
    return Experts(
        w_in=_normal(first, (*lead, width, spec.columns), width, dtype),
        w_out=_normal(second, (*lead, spec.d_hidden, width), spec.d_hidden, dtype),
        b_in=jnp.zeros((*lead, spec.columns), dtype) if spec.expert_bias else None,
        b_out=jnp.zeros((*lead, width), dtype) if spec.expert_bias else None,
    )


def _normal(key, shape: tuple[int, ...], fan_in: int, dtype):
    return jax.random.normal(key, shape, dtype) * jnp.asarray(fan_in**-0.5, dtype)
