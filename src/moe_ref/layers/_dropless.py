"""Every token copy in a row of its expert's group."""

import functools

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moe_ref import dispatch
from moe_ref._numerics import accumulator_dtype
from moe_ref.experts import Experts, feed_forward
from moe_ref.grouped import grouped_matmul
from moe_ref.layers._execution import Execution
from moe_ref.spec import ExpertSpec, LayerSpec, WeightSite


class Dropless(Execution):
    """Sort the copies by expert and multiply group by group: `grouped_matmul`, no padding, no drop.

    Attributes:
        implementation: of `grouped_matmul`.
        precision: of `grouped_matmul`, all of whose products it reaches. Beside bfloat16
            parameters on a Hopper GPU "default" rounds cotangents to bfloat16 before they are
            multiplied, as frameworks do, and "highest" multiplies them in full, in three products.
    """

    implementation: str = eqx.field(static=True, default="auto")
    precision: str = eqx.field(static=True, default="highest")

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
) -> Float[Array, "tokens d_expert"]:
    """`grouped_experts` of rows that are planned already."""
    matmul = functools.partial(
        grouped_matmul,
        group_sizes=plan.group_sizes,
        implementation=implementation,
        precision=precision,
        out_dtype=accumulator_dtype(dtype),
    )
    at_output = weight_site == "output"
    rows = feed_forward(
        dispatch.permute(x, plan).astype(dtype),
        experts,
        spec=spec,
        matmul=matmul,
        weights=None if at_output else dispatch.permute_weights(weights, plan),
        weight_site=weight_site,
    )
    return dispatch.combine(rows, weights if at_output else None, plan)
