"""The gradient of the layer, by hand from the calculus, not by automatic differentiation."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._arithmetic import multiply
from moe_ref.oracle._dot import dot, dot_rows
from moe_ref.oracle._formats import coarser
from moe_ref.oracle._gradients import Gradients, Stack, of_network, of_router, returned
from moe_ref.oracle._layer import routed_total, run_routed, run_shared, visit
from moe_ref.oracle._params import floats
from moe_ref.oracle._problem import Problem, problem
from moe_ref.oracle._smooth import SIGMOID, apply_slope
from moe_ref.oracle._sum import Sum
from moe_ref.oracle._value import (
    Value,
    constant,
    correlated,
    exact,
    given,
    narrowed,
    scattered,
    settled,
)
from moe_ref.oracle._vjp_expert import ExpertGradient, column_sums, expert_vjp
from moe_ref.oracle._vjp_route import router_vjp
from moe_ref.spec import LayerSpec, Numerics


@np.errstate(all="ignore")
def layer_vjp(
    x: Any,
    params: Any,
    spec: LayerSpec,
    cotangent: Any,
    *,
    routing: Any = None,
    experts: Any = None,
    mask: Any = None,
    token_ids: Any = None,
    numerics: Numerics | None = None,
) -> Gradients:
    r"""Gradients of $\sum y \odot \mathrm{cotangent}$ with their bounds.

    Args:
        x: as for `layer`.
        params: as for `layer`.
        spec: as for `layer`.
        cotangent: [tokens, d_model], taken as exact.
        routing: as for `layer`; the gradient stops at the given weights.
        experts: as for `layer`; the gradient goes through the weights to the router.
        mask: as for `layer`; padding has gradient 0.
        token_ids: as for `layer`.
        numerics: as for `layer`.

    Returns:
        The `Gradients`.

    Raises:
        ValueError: arrays that contradict the spec or each other.

    Special cases:
        An expert that no slot visits has gradient exactly 0. A dropped or empty slot gets and
        gives no gradient, but its score takes part in the renormalisation of the others.
        At the kinks of relu and of clamps see the bounds: 0 for relu at 0, anything in [0, 1] at a
        clamp's end.

    Complexity:
        Three times that of `layer`; memory of all parameters' gradients.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle, spec

        s = spec.LayerSpec(
            d_model=2, router=spec.RouterSpec(num_experts=2, k=1, score="none"),
            experts=spec.ExpertSpec(d_hidden=1, gated=False, activation="relu"),
        )
        p = {
            "router": {"weight": np.eye(2)},
            "experts": {"w_in": np.ones((2, 2, 1)), "w_out": np.ones((2, 1, 2))},
        }
        g = oracle.layer_vjp(np.array([[1.0, 2.0]]), p, s, np.array([[1.0, 0.0]]))
        assert g.weights.value[0, 0] == 3.0 and not g.experts.w_in.value[0].any()
        ```
    """
    p = problem(
        x,
        params,
        spec,
        routing=routing,
        experts=experts,
        mask=mask,
        token_ids=token_ids,
        numerics=numerics,
    )
    values = floats(cotangent)
    shape = (p.tokens, spec.d_model)
    require(values.shape == shape, "cotangent", f"of shape {shape}", f"shape {values.shape}")
    return _pulled_back(p, given(values[p.live], p.formats.output))


def _pulled_back(p: Problem, dy: Value) -> Gradients:
    f, spec, everyone = p.formats, p.spec, np.arange(len(p.live))
    format = coarser(f.gradient_sum, f.accumulate)
    dx = Sum(p.x.shape)
    latent_in = latent_out = None
    d_routed = dy
    if spec.d_latent:
        d_routed, latent_out = _latent_out_vjp(p, dy)
    if spec.router.scale_site == "output" and spec.router.scale != 1:
        scale = constant(spec.router.scale, d_routed.shape, f.accumulate)
        d_routed = multiply(d_routed, scale, f.accumulate)

    d_read, dw, experts = _routed_vjp(p, d_routed)
    if spec.d_latent:
        d_latent = narrowed(d_read.total(p.kept.shape[1], format), f.cotangent, format)
        w = p.array("latent_in", spec.d_model, spec.d_latent)
        dx.add(everyone, narrowed(dot(d_latent, w.transposed, f), format, f.accumulate))
        latent_in = dot(p.x.transposed, d_latent, f)
    else:
        dx = d_read

    shared, shared_gate = None, None
    if spec.shared_d_hidden:
        shared, shared_gate = _shared_vjp(p, dy, dx)
    router = None
    if p.router is not None:
        router, from_router = router_vjp(p, dw)
        dx.add(everyone, narrowed(from_router, format, f.accumulate))

    total = narrowed(dx.total(p.kept.shape[1] + 3, format), f.gradient, format)
    return Gradients(
        x=settled(scattered(total, p.live, p.tokens)),
        weights=settled(scattered(dw, p.live, p.tokens)),
        router=of_router(p, router),
        experts=experts.finish(),
        shared=of_network(p, shared),
        shared_gate=returned(p, shared_gate),
        latent_in=returned(p, latent_in),
        latent_out=returned(p, latent_out),
        output_bias=returned(p, column_sums(dy, f)) if spec.output_bias else None,
    )


def _routed_vjp(p: Problem, d_routed: Value) -> tuple[Sum, Value, Stack]:
    """Gradients of what the experts read, of the weights, and of the experts."""
    f, spec = p.formats, p.spec
    format = coarser(f.gradient_sum, f.accumulate)
    d_read, experts = Sum(p.latent.shape), Stack(p)
    dw = exact(np.zeros(p.kept.shape)).map(np.array)
    for expert, rows, slots in p.visits():
        weight, dy = p.routing.weights[rows, slots][:, None], d_routed[rows]
        if expert >= spec.router.num_experts:
            back, d_weight = multiply(dy, weight, f.accumulate), dot_rows(dy, p.latent[rows], f)
        else:
            own = p.latent[rows]
            trace = visit(p, expert, rows, weight)
            parameters = p.expert(expert)
            g = expert_vjp(
                own,
                dy,
                trace,
                parameters,
                spec.experts,
                f,
                weight,
                spec.weight_site,
                onward=spec.d_latent is not None,
            )
            experts.put(expert, g)
            back, d_weight = g.x, g.weight
        assert d_weight is not None
        d_read.add(rows, narrowed(narrowed(back, f.cotangent, f.accumulate), format, f.accumulate))
        d_weight = narrowed(d_weight, f.weights, f.accumulate)
        for field in dataclasses.fields(Value):
            getattr(dw, field.name)[rows, slots] = getattr(d_weight, field.name)[:, 0]
    return d_read, dw, experts


def _latent_out_vjp(p: Problem, dy: Value) -> tuple[Value, Value]:
    f, spec = p.formats, p.spec
    w = p.array("latent_out", spec.d_latent or 0, spec.d_model)
    routed = narrowed(routed_total(p, run_routed(p)[0]), f.inputs, f.accumulate)
    d_out = narrowed(dy, f.cotangent, f.accumulate)
    d_routed = dot(d_out, w.transposed, f, onward=True)
    return narrowed(d_routed, f.cotangent, f.accumulate), dot(routed.transposed, d_out, f)


def _shared_vjp(p: Problem, dy: Value, dx: Sum) -> tuple[ExpertGradient, Value | None]:
    """Gradients of the shared expert and of its gate; adds their parts of the gradient of x."""
    f, everyone = p.formats, np.arange(len(p.live))
    format = coarser(f.gradient_sum, f.accumulate)
    trace, logit, gate = run_shared(p)
    weight = None if gate is None else correlated(gate.value, gate.bound, gate.worst)
    g = expert_vjp(p.x, dy, trace, p.shared(), p.shared_spec, f, weight)
    dx.add(everyone, narrowed(narrowed(g.x, f.cotangent, f.accumulate), format, f.accumulate))
    if g.weight is None or logit is None:
        return g, None
    of_gate = coarser(f.shared_gate, f.accumulate)
    d_gate = narrowed(g.weight, of_gate, f.accumulate)
    d_logit = multiply(d_gate, apply_slope(logit, SIGMOID, of_gate), of_gate)
    d_logit = narrowed(d_logit, f.cotangent, of_gate)
    direction = p.array("shared_gate", p.spec.d_model)[None, :]
    dx.add(everyone, narrowed(multiply(d_logit, direction, f.accumulate), format, f.accumulate))
    return g, dot(p.x.transposed, d_logit, f)[:, 0]
