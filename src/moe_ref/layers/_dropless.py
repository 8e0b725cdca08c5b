"""Every token copy in a row of its expert's group."""

import functools

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from moe_ref import dispatch
from moe_ref._numerics import accumulator_dtype
from moe_ref.experts import Experts, feed_forward
from moe_ref.grouped import grouped_matmul
from moe_ref.layers._execution import Execution
from moe_ref.spec import LayerSpec


class Dropless(Execution):
    """Sort the copies by expert and multiply group by group: `grouped_matmul`, no padding, no drop.

    Attributes:
        implementation: of `grouped_matmul`.
    """

    implementation: str = eqx.field(static=True, default="auto")

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
        plan = dispatch.plan(ids, num_experts=spec.router.num_experts)
        matmul = functools.partial(
            grouped_matmul,
            group_sizes=plan.group_sizes,
            implementation=self.implementation,
            out_dtype=accumulator_dtype(x.dtype),
        )
        at_output = spec.weight_site == "output"
        rows = feed_forward(
            dispatch.permute(x, plan),
            experts,
            spec=spec.experts,
            matmul=matmul,
            weights=None if at_output else dispatch.permute_weights(weights, plan),
            weight_site=spec.weight_site,
        )
        return dispatch.combine(rows, weights if at_output else None, plan), plan.kept
