"""Layers whose output can be told without arithmetic."""

import equinox as eqx
import jax.numpy as jnp

from moe_ref.layers import Capacity, Dense, Dropless, Execution, MoE
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec

WAYS: dict[str, Execution] = {
    "dense": Dense(),
    "dropless": Dropless(),
    "capacity": Capacity(expert_capacity=64),
}

run = eqx.filter_jit(lambda layer, x, **arguments: layer(x, **arguments))


def constant_experts(outputs, *, k: int, dtype="float32", weight_site="output", **router) -> MoE:
    """Expert e gives outputs[e] for every token: zero matrices and an output bias.

    The router's weight is 0, so all logits are equal.
    """
    outputs = jnp.asarray(outputs, dtype)
    experts, d = outputs.shape
    spec = LayerSpec(
        d_model=d,
        router=RouterSpec(num_experts=experts, k=k, **router),
        experts=ExpertSpec(d_hidden=1, gated=False, activation="relu", expert_bias=True),
        weight_site=weight_site,
    )
    arrays = {
        "w_in": jnp.zeros((experts, d, 1), dtype),
        "b_in": jnp.zeros((experts, 1), dtype),
        "w_out": jnp.zeros((experts, 1, d), dtype),
        "b_out": outputs,
    }
    router = {"weight": jnp.zeros((experts, d), dtype)}
    return MoE.from_arrays(spec, {"router": router, "experts": arrays})


def identity_experts(d: int, experts: int, *, k: int, dtype="float32", **router) -> MoE:
    """Every expert gives its input, exactly: relu(x) - relu(-x)."""
    eye = jnp.eye(d, dtype=dtype)
    spec = LayerSpec(
        d_model=d,
        router=RouterSpec(num_experts=experts, k=k, **router),
        experts=ExpertSpec(d_hidden=2 * d, gated=False, activation="relu"),
    )
    both = jnp.concatenate([eye, -eye], axis=1)
    arrays = {
        "w_in": jnp.broadcast_to(both, (experts, d, 2 * d)),
        "w_out": jnp.broadcast_to(both.T, (experts, 2 * d, d)),
    }
    router = {"weight": jnp.ones((experts, d), dtype) * jnp.arange(experts, dtype=dtype)[:, None]}
    return MoE.from_arrays(spec, {"router": router, "experts": arrays})
