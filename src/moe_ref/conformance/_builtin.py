"""moe_ref's own implementations, as they are judged."""

import dataclasses
import functools
import types
from typing import Any

import equinox as eqx
import jax

from moe_ref.conformance._builtin_exchange import exchanges
from moe_ref.conformance._builtin_mx import multipliers, quantizers
from moe_ref.conformance._implementation import Implementation
from moe_ref.dispatch import combine, permute, plan, plan_capacity
from moe_ref.grouped import grouped_matmul, implementations
from moe_ref.layers import Capacity, Dense, Dropless
from moe_ref.routing import Routing, balance_loss, expert_load, route, update_selection_bias, z_loss
from moe_ref.spec import CapacitySpec, Numerics


def builtin() -> tuple[Implementation, ...]:
    """moe_ref's own implementations, with everything they declare, on the default backend."""
    grouped = tuple(
        Implementation(
            name=f"grouped_matmul[{name}]",
            op="grouped_matmul",
            function=functools.partial(grouped_matmul, implementation=name),
            zero_tail=True,
            gradients=True,
            may_decline=False,
        )
        for name in implementations()
    )
    single = tuple(
        Implementation(
            name=op,
            op=op,
            function=function,
            gradients=True,
            may_decline=False,
            capacity=op == "plan",
        )
        for op, function in {"route": _route, "losses": _losses, "plan": _plan}.items()
    )
    executions = {
        "Dense": Dense(),
        "Dropless": Dropless(),
        "Capacity": Capacity(capacity_factor=1e9),
    }
    layers = tuple(
        Implementation(
            name=f"MoE[{name}]",
            op="layer",
            function=functools.partial(_layer, execution=execution),
            vjp=functools.partial(_layer_vjp, execution=execution),
            gradients=True,
            may_decline=False,
            capacity=name == "Capacity",
        )
        for name, execution in executions.items()
    )
    every = (*grouped, *single, *exchanges(), *quantizers(), *multipliers(), *layers)
    if jax.default_backend() != "gpu":
        return every
    cores = {name: Numerics.on_tensor_cores(name) for name in ("bfloat16", "float16")}
    return tuple(dataclasses.replace(each, numerics=cores) for each in every)


def _route(logits: Any, spec: Any, bias: Any = None, mask: Any = None) -> Any:
    return jax.jit(route, static_argnums=1)(logits, spec, bias, mask)


def _losses(logits: Any, experts: Any, spec: Any, mask: Any = None) -> dict[str, Any]:
    return _jitted_losses(logits, experts, mask, spec=spec)


@functools.partial(jax.jit, static_argnames="spec")
def _jitted_losses(logits: Any, experts: Any, mask: Any, *, spec: Any) -> dict[str, Any]:
    routing: Routing = route(logits, spec, None, mask, experts=experts)
    load = expert_load(routing.experts, num_experts=spec.num_choices)
    zero = jax.numpy.zeros(spec.num_choices, "float32")
    return {
        "balance": balance_loss(routing, spec=spec, mask=mask),
        "z": z_loss(logits, mask=mask),
        "load": load,
        "step": update_selection_bias(zero, load, rate=1.0),
    }


def _plan(x: Any, experts: Any, num_experts: int, capacity: int | None = None) -> Any:
    if capacity is None:
        made = jax.jit(plan, static_argnames="num_experts")(experts, num_experts=num_experts)
    else:
        limit = CapacitySpec(expert_capacity=capacity, drop_order="token_major")
        jitted = jax.jit(plan_capacity, static_argnames=("num_experts", "capacity"))
        made = jitted(experts, num_experts=num_experts, capacity=limit)
    rows = jax.jit(permute)(x, made)
    return rows, made.group_sizes, lambda rows, weights: jax.jit(combine)(rows, weights, made)


def _layer(layer: Any, x: Any, mask: Any = None, *, execution: Any) -> Any:
    y, routing = eqx.filter_jit(_apply)(layer, x, mask, execution)
    return y, types.SimpleNamespace(routing=routing)


def _layer_vjp(layer: Any, x: Any, cotangent: Any, mask: Any = None, *, execution: Any) -> Any:
    """The gradient of JAX, in one program: compiled in less time than one for each direction."""
    dlayer, dx = eqx.filter_jit(_pull)(layer, x, cotangent, mask, execution)
    named = jax.tree_util.tree_flatten_with_path(dlayer)[0]
    gradients = {f"layer{jax.tree_util.keystr(path)}": leaf for path, leaf in named}
    return {"x": dx} | gradients


def _pull(layer: Any, x: Any, cotangent: Any, mask: Any, execution: Any) -> Any:
    parameters, rest = eqx.partition(layer, eqx.is_inexact_array)

    def run(parameters, x):
        return _apply(eqx.combine(parameters, rest), x, mask, execution)[0]

    return jax.vjp(run, parameters, x)[1](cotangent)


def _apply(layer: Any, x: Any, mask: Any, execution: Any) -> Any:
    if layer.spec.capacity is not None and isinstance(execution, Capacity):
        execution = Capacity()
    y, aux = layer(x, mask=mask, execution=execution)
    return y, aux.routing  # losses and loads, which are not judged here, are not compiled
