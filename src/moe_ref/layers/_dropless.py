"""Every token copy in a row of its expert's group."""

import dataclasses
import functools

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moe_ref import dispatch
from moe_ref._numerics import accumulator_dtype
from moe_ref.experts import Experts, feed_forward
from moe_ref.grouped import grouped_matmul
from moe_ref.layers._execution import Execution
from moe_ref.mx import grouped_matmul_mx
from moe_ref.spec import ExpertSpec, LayerSpec, MXSpec, WeightSite
from moe_ref.spec._mx import mx_spec


class Dropless(Execution):
    """Sort the copies by expert and multiply group by group: `grouped_matmul`, no padding, no drop.

    With `quantization` the experts' matrices are multiplied by `mx.grouped_matmul_mx`, forward and
    backward, with blocks along each contraction, a short last one as if zeros followed. What is
    quantised: the rows that the experts read, the hidden layer, once it is rounded to the dtype of
    `x`, the matrices, and the cotangents, in float32; nothing else, no bias either. The gradient
    passes through the quantisation as if it were the identity.

    Attributes:
        implementation: of `grouped_matmul`.
        precision: of `grouped_matmul`, all of whose products it reaches. Beside bfloat16
            parameters on a Hopper GPU "default" rounds cotangents to bfloat16 before they are
            multiplied, as frameworks do, and "highest" multiplies them in full, in three products.
            Products of MX operands have one precision, the full one.
        quantization: how operands are written in MX blocks, or the name of a format, for
            `MXSpec(format=...)`; None: they are multiplied as they are. Not for float64.

    Raises:
        ValueError: no such format.

    Example:
        ```python
        import jax
        from moe_ref import layers, spec

        small = spec.preset("mixtral-8x7b").replace(d_model=64, d_hidden=48)
        layer = layers.MoE(small, key=jax.random.key(0))
        x = jax.random.normal(jax.random.key(1), (10, 64))
        y, _ = layer(x, execution=layers.Dropless(quantization="mxfp8_e4m3"))
        floor = spec.MXSpec(format="mxfp8_e5m2", rule="floor", wgrad="high_precision_matmul")
        z, _ = layer(x, execution=layers.Dropless(quantization=floor))
        assert y.shape == z.shape and (y != z).any()
        ```
    """

    implementation: str = eqx.field(static=True, default="auto")
    precision: str = eqx.field(static=True, default="highest")
    quantization: MXSpec | None = eqx.field(
        static=True, default=None, converter=functools.partial(mx_spec, argument="quantization")
    )

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
        return grouped_experts(
            x,
            ids,
            weights,
            experts,
            num_experts=spec.router.num_experts,
            spec=spec.experts,
            weight_site=spec.weight_site,
            implementation=self.implementation,
            precision=self.precision,
            quantization=self.quantization,
            dtype=x.dtype,
        )


def grouped_experts(
    x: Float[Array, "tokens d_expert"],
    ids: Int[Array, "tokens k"],
    weights: Float[Array, "tokens k"],
    experts: Experts,
    *,
    num_experts: int,
    spec: ExpertSpec,
    weight_site: WeightSite,
    implementation: str,
    dtype: jnp.dtype,
    precision: str,
    quantization: MXSpec | None = None,
) -> tuple[Float[Array, "tokens d_expert"], Bool[Array, "tokens k"]]:
    """The experts in groups of rows, which are rounded to `dtype`.

    `x` may be wider: the gradient of a row's copies is then summed unrounded.
    """
    plan = dispatch.plan(ids, num_experts=num_experts)
    y = planned_experts(
        x,
        weights,
        experts,
        plan,
        spec=spec,
        weight_site=weight_site,
        implementation=implementation,
        dtype=dtype,
        precision=precision,
        quantization=quantization,
    )
    return y, plan.kept


def planned_experts(
    x: Float[Array, "tokens d_expert"],
    weights: Float[Array, "tokens k"],
    experts: Experts,
    plan: dispatch.Plan,
    *,
    spec: ExpertSpec,
    weight_site: WeightSite,
    implementation: str,
    dtype: jnp.dtype,
    precision: str,
    quantization: MXSpec | None = None,
) -> Float[Array, "tokens d_expert"]:
    """`grouped_experts` of rows that are planned already."""
    common = {
        "group_sizes": plan.group_sizes,
        "implementation": implementation,
        "out_dtype": accumulator_dtype(dtype),
    }
    plain = functools.partial(grouped_matmul, precision=precision, **common)
    matmul = plain
    if quantization is not None:
        chosen = dataclasses.asdict(quantization)
        matmul = functools.partial(grouped_matmul_mx, **chosen, **common)
    at_output = weight_site == "output"
    rows = feed_forward(
        dispatch.permute(x, plan).astype(dtype),
        experts,
        spec=spec,
        matmul=matmul,
        bias_matmul=plain,
        weights=None if at_output else dispatch.permute_weights(weights, plan),
        weight_site=weight_site,
    )
    return dispatch.combine(rows, weights if at_output else None, plan)
