"""What the oracle says about a layer's gradients."""

import dataclasses

import numpy as np

from moe_ref.oracle._problem import Problem
from moe_ref.oracle._value import Value, exact, narrowed, settled
from moe_ref.oracle._vjp_expert import ExpertGradient
from moe_ref.oracle._vjp_route import RouterGradient


@dataclasses.dataclass(frozen=True)
class FeedForwardGradient:
    """Gradients of the routed experts, with a leading axis [experts], or of the shared one.

    Args:
        w_in: [experts, d_in, columns].
        w_out: [experts, d_hidden, d_in].
        b_in: [experts, columns] or None.
        b_out: [experts, d_in] or None.
    """

    w_in: Value
    w_out: Value
    b_in: Value | None
    b_out: Value | None


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Gradients of a layer, each a `Value`; None where the layer has no such parameter.

    Args:
        x: [tokens, d_model], all paths added up.
        weights: [tokens, k], of the combine weights; 0 in slots that were empty or dropped.
        router: None where the routing was given: the gradient stops at the weights.
        experts: of the routed experts; exactly 0 for one that no slot visits.
        shared: of the shared expert.
        shared_gate: [d_model].
        latent_in: [d_model, d_latent].
        latent_out: [d_latent, d_model].
        output_bias: [d_model].
    """

    x: Value
    weights: Value
    router: RouterGradient | None
    experts: FeedForwardGradient
    shared: FeedForwardGradient | None
    shared_gate: Value | None
    latent_in: Value | None
    latent_out: Value | None
    output_bias: Value | None


def returned(p: Problem, g: Value | None) -> Value | None:
    """A parameter's gradient as the kernel returns it, rounded once more."""
    return None if g is None else settled(narrowed(g, p.formats.gradient, p.formats.accumulate))


def of_router(p: Problem, g: RouterGradient | None) -> RouterGradient | None:
    """The router's gradients as the kernel returns them."""
    if g is None:
        return None
    weight = returned(p, g.weight)
    assert weight is not None
    return RouterGradient(weight, returned(p, g.bias), returned(p, g.per_expert_scale))


def of_network(p: Problem, g: ExpertGradient | None) -> FeedForwardGradient | None:
    """One network's gradients as the kernel returns them."""
    if g is None:
        return None
    w_in, w_out = returned(p, g.w_in), returned(p, g.w_out)
    assert w_in is not None
    assert w_out is not None
    return FeedForwardGradient(w_in, w_out, returned(p, g.b_in), returned(p, g.b_out))


class Stack:
    """The gradients of all routed experts, filled in one expert at a time.

    Only what a result needs is stored; from here on all errors count as systematic.

    Args:
        p: the layer.
    """

    def __init__(self, p: Problem):
        e, d, experts = p.spec.experts, p.spec.d_expert, p.spec.router.num_experts
        shapes = {"w_in": (d, e.columns), "w_out": (e.d_hidden, d)}
        if e.expert_bias:
            shapes |= {"b_in": (e.columns,), "b_out": (d,)}
        self._problem = p
        self._arrays = {
            name: {part: np.zeros((experts, *shape)) for part in _STORED}
            for name, shape in shapes.items()
        }

    def put(self, expert: int, g: ExpertGradient) -> None:
        """Store one expert's gradients."""
        for name, arrays in self._arrays.items():
            mine = returned(self._problem, getattr(g, name))
            for part, array in arrays.items():
                array[expert] = getattr(mine, part)

    def finish(self) -> FeedForwardGradient:
        """All of them."""
        whole: dict[str, Value | None] = {
            name: Value(
                **arrays, systematic=arrays["bound"], independent=exact(arrays["value"]).bound
            )
            for name, arrays in self._arrays.items()
        }
        return FeedForwardGradient(**({"b_in": None, "b_out": None} | whole))  # pyright: ignore


_STORED = ("value", "bound", "worst", "variance")
