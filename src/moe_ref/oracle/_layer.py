r"""The layer: $y = \sum_j w_j\,\mathrm{expert}_{id_j}(x)$ and what is added to it."""

from typing import Any

import numpy as np

from moe_ref.oracle._arithmetic import multiply
from moe_ref.oracle._decide import with_padding
from moe_ref.oracle._dot import dot
from moe_ref.oracle._expert import Trace, run_expert
from moe_ref.oracle._formats import coarser
from moe_ref.oracle._layer_result import LayerResult
from moe_ref.oracle._problem import Problem, problem
from moe_ref.oracle._smooth import SIGMOID, apply
from moe_ref.oracle._sum import Sum
from moe_ref.oracle._value import Value, constant, narrowed, scattered, settled
from moe_ref.spec import LayerSpec, Numerics


@np.errstate(all="ignore")
def layer(
    x: Any,
    params: Any,
    spec: LayerSpec,
    *,
    routing: Any = None,
    experts: Any = None,
    mask: Any = None,
    token_ids: Any = None,
    numerics: Numerics | None = None,
) -> LayerResult:
    r"""Compute a layer, and how far correct rounding may move each output.

    Args:
        x: [tokens, d_model], taken as exact; its dtype gives the default `numerics`.
        params: the parameters: a mapping or an object with `router`, `experts` and whatever else
            the spec calls for, such as `moe_ref.layers.MoE` itself. Read one expert at a time.
        spec: what the layer computes.
        routing: a mapping or an object with `experts` and `weights`, both [tokens, k], taken as
            they are: a kernel's own routing, so that only what comes after it is judged.
        experts: [tokens, k] ids alone, -1 for an empty slot; the weights come from live scores.
        mask: [tokens] bool, True for a real token. Padding gives exactly 0.
        token_ids: [tokens], for a router that hashes them.
        numerics: of the kernel; by default those of moe_ref's own executions, `numerics_for`.

    Returns:
        Values, bounds and routing.

    Raises:
        ValueError: arrays that contradict the spec or each other.

    Special cases:
        A NaN or Inf in a token or in an expert's parameters reaches the outputs that depend on it
        and no other: their value is not finite and their bound inf. Where an intermediate may
        overflow the kernel's format, the bound is inf and the value may be finite.

    Complexity:
        Time of the layer's own matmuls times 8 or so; memory of the tokens and one expert.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle, spec

        s = spec.LayerSpec(
            d_model=2, router=spec.RouterSpec(num_experts=2, k=1),
            experts=spec.ExpertSpec(d_hidden=1, gated=False, activation="relu"),
        )
        p = {
            "router": {"weight": np.eye(2)},
            "experts": {"w_in": np.ones((2, 2, 1)), "w_out": np.ones((2, 1, 2))},
        }
        o = oracle.layer(np.array([[1.0, 2.0]]), p, s)
        assert abs(o.value[0, 0] - 3 / (1 + np.exp(-1))) <= o.bound[0, 0]
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
    routed, contributions = run_routed(p)
    output = _combined(p, routed)
    if spec.d_latent:
        contributions = contributions @ p.array("latent_out", spec.d_latent, spec.d_model).value
    if spec.router.scale_site == "output":
        contributions = contributions * spec.router.scale
    slots = np.zeros((p.tokens, *contributions.shape[1:]), np.float32)
    kept = np.zeros(slots.shape[:2], bool)
    slots[p.live], kept[p.live] = contributions, p.kept
    return LayerResult(
        output=settled(scattered(output, p.live, p.tokens)),
        routing=with_padding(p.routing, p.live, p.tokens),
        contributions=slots,
        kept=kept,
    )


def run_routed(p: Problem) -> tuple[Sum, np.ndarray]:
    """The sum over slots, and each slot's term: [rows, k, d_expert]."""
    routed = Sum(p.latent.shape)
    contributions = np.zeros((*p.kept.shape, p.spec.d_expert), np.float32)
    for expert, rows, slots in p.visits():
        weight = p.routing.weights[rows, slots][:, None]
        if expert >= p.spec.router.num_experts:
            term = multiply(p.latent[rows], weight)
        else:
            term = visit(p, expert, rows, weight).weighted
        routed.add(rows, term)
        contributions[rows, slots] = term.value
    return routed, contributions


def visit(p: Problem, expert: int, rows: np.ndarray, weight: Value) -> Trace:
    """One expert on its rows."""
    return run_expert(
        p.latent[rows],
        p.expert(expert),
        p.spec.experts,
        p.formats,
        weight,
        p.spec.weight_site,
        onward=p.spec.d_latent is not None,
    )


def routed_total(p: Problem, routed: Sum) -> Value:
    """The routed sum in the format it is combined in, scaled."""
    format = coarser(p.formats.combine, p.formats.accumulate)
    total = routed.total(p.kept.shape[1], format)
    if p.spec.router.scale_site == "output" and p.spec.router.scale != 1:
        total = multiply(total, constant(p.spec.router.scale, total.shape, format), format)
    return total


def run_shared(p: Problem) -> tuple[Trace, Value | None, Value | None]:
    """The shared expert's trace, its gate's logit and the gate: [rows, 1]."""
    trace = run_expert(p.x, p.shared(), p.shared_spec, p.formats)
    if not p.spec.shared_gate:
        return trace, None, None
    direction = p.array("shared_gate", p.spec.d_model)[:, None]
    format = coarser(p.formats.shared_gate, p.formats.accumulate)
    logit = narrowed(dot(p.x, direction, p.formats), format, p.formats.accumulate)
    return trace, logit, apply(logit, SIGMOID, format)


def _combined(p: Problem, routed: Sum) -> Value:
    f, k = p.formats, p.kept.shape[1]
    format = coarser(f.combine, f.accumulate)
    total, mass = routed_total(p, routed), None
    if p.spec.d_latent:
        total = narrowed(total, f.inputs, format)
        back = p.array("latent_out", p.spec.d_latent, p.spec.d_model)
        total = narrowed(dot(total, back, f), format, f.accumulate)
    elif p.spec.router.scale_site == "weight":
        mass = routed.mass
    parts = [total]
    if p.spec.shared_d_hidden:
        trace, _, gate = run_shared(p)
        parts.append(trace.output if gate is None else multiply(trace.output, gate, format))
    if p.spec.output_bias:
        bias = p.array("output_bias", p.spec.d_model)
        parts.append(bias.map(lambda array: np.broadcast_to(array, p.x.shape)))
    if len(parts) > 1:
        # The shared expert and the bias may be added before, between or after the slots.
        whole, rows = Sum(p.x.shape), np.arange(p.x.shape[0])
        for part in parts:
            whole.add(rows, part, mass if part is total else None)
        total = whole.total(k + len(parts), format)
    return narrowed(total, f.output, format)
