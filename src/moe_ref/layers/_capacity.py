"""A fixed number of rows an expert; what comes later is dropped."""

import functools

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from moe_ref import dispatch
from moe_ref.experts import Experts, feed_forward
from moe_ref.layers._execution import Execution
from moe_ref.layers._masked import masked_matmul
from moe_ref.spec import CapacitySpec, DropOrder, LayerSpec, Rounding


class Capacity(Execution):
    """Give every expert the same number of rows and drop what overflows.

    Args:
        expert_capacity: absolute number of rows of an expert.
        capacity_factor: rows as a multiple of the fair share.
        capacity_rounding: of the factor's product.
        drop_order: who is served first.

    See `CapacitySpec` for the formulas. With neither number given, the layer's own
    `spec.capacity` is used.

    Raises:
        ValueError: arguments that contradict each other, or, when called, a layer without a
            capacity of its own where none was given.
    """

    capacity: CapacitySpec | None = eqx.field(static=True)

    def __init__(
        self,
        *,
        expert_capacity: int | None = None,
        capacity_factor: float | None = None,
        capacity_rounding: Rounding = "ceil",
        drop_order: DropOrder = "token_major",
    ):
        given = expert_capacity is not None or capacity_factor is not None
        if not given and (capacity_rounding != "ceil" or drop_order != "token_major"):
            raise ValueError(
                "`expert_capacity` or `capacity_factor` must be given with a rounding or an order; "
                f"got capacity_rounding={capacity_rounding!r}, drop_order={drop_order!r}."
            )
        self.capacity = (
            CapacitySpec(
                expert_capacity=expert_capacity,
                capacity_factor=capacity_factor,
                capacity_rounding=capacity_rounding,
                drop_order=drop_order,
            )
            if given
            else None
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
        capacity = self.capacity or spec.capacity
        if capacity is None:
            raise ValueError(
                "`Capacity` must be given expert_capacity or capacity_factor for a layer whose "
                "spec.capacity is None; got neither."
            )
        num_experts = spec.router.num_experts
        plan = dispatch.plan_capacity(ids, num_experts=num_experts, capacity=capacity)
        slots = plan.slot.shape[0] // num_experts
        filled = plan.filled.reshape(num_experts, slots, 1)
        at_output = spec.weight_site == "output"
        at_rows = None if at_output else dispatch.permute_weights(weights, plan)
        rows = feed_forward(
            dispatch.permute(x, plan).reshape(num_experts, slots, x.shape[1]),
            experts,
            spec=spec.experts,
            matmul=functools.partial(masked_matmul, filled=filled),
            weights=None if at_rows is None else at_rows.reshape(num_experts, slots, 1),
            weight_site=spec.weight_site,
        )
        flat = rows.reshape(num_experts * slots, x.shape[1])
        return dispatch.combine(flat, weights if at_output else None, plan), plan.kept
