r"""The gradient of the router: from the weights through scores and logits to x and $W$."""

import dataclasses

import numpy as np

from moe_ref.oracle._arithmetic import multiply
from moe_ref.oracle._decide import token_scores
from moe_ref.oracle._dot import dot
from moe_ref.oracle._formats import Formats, finer
from moe_ref.oracle._logits import cast
from moe_ref.oracle._problem import Problem
from moe_ref.oracle._smooth import SIGMOID, SQRT_SOFTPLUS, apply_slope, soft_cap
from moe_ref.oracle._value import Value, correlated, exact, narrowed
from moe_ref.oracle._vjp_weights import softmax_vjp, weights_vjp
from moe_ref.spec import RouterSpec


@dataclasses.dataclass(frozen=True)
class RouterGradient:
    """Gradients of the router's parameters. The selection bias has none.

    Args:
        weight: [choices, d_model].
        bias: [choices] or None.
        per_expert_scale: [choices] or None.
    """

    weight: Value
    bias: Value | None
    per_expert_scale: Value | None


def router_vjp(p: Problem, dw: Value) -> tuple[RouterGradient, Value]:
    """Pull the cotangent of the weights back to the router's parameters and to x.

    Args:
        p: the layer, its routing not given.
        dw: [live, k], in the dtype of the weights.

    Returns:
        The router's gradients before their last rounding, and its part of the gradient of x.
    """
    router, routing, f = p.router, p.routing, p.formats
    assert router is not None
    assert routing.logits is not None
    assert p.uncapped is not None
    rule = p.spec.router
    scale = router.per_expert_scale
    dz, d_factor = logits_vjp(dw, routing.logits, routing.experts, rule, f, scale)
    if rule.logit_softcap is not None:
        slope = apply_slope(p.uncapped, soft_cap(rule.logit_softcap), f.logits)
        dz = multiply(dz, slope, f.logits)

    wide = finer(f.accumulate, f.projection)
    # Within a token the errors of dz share the sums over its experts; between tokens they do not.
    shared = correlated(dz.value, dz.bound, dz.worst)
    dx = narrowed(dot(shared, router.weight, f, accumulate=wide), f.projection, wide)
    weight = dot(dz.transposed, cast(p.x, f.projection), f, accumulate=wide)
    ones = exact(np.ones((1, dz.shape[0])))
    bias = None if router.bias is None else dot(ones, dz, f, accumulate=wide)[0]
    if bias is not None:
        bias = narrowed(bias, f.projection, wide)
    return RouterGradient(narrowed(weight, f.projection, wide), bias, d_factor), dx


def logits_vjp(
    dw: Value,
    logits: Value,
    experts: np.ndarray,
    rule: RouterSpec,
    formats: Formats,
    per_expert_scale: Value | None,
) -> tuple[Value, Value | None]:
    """Pull the cotangent of the weights back to the logits, after the softcap.

    Args:
        dw: [tokens, k], in the dtype of the weights.
        logits: [tokens, choices].
        experts: [tokens, k] ids, -1 for an empty slot.
        rule: the rule.
        formats: of the kernel.
        per_expert_scale: [choices] or None.

    Returns:
        The gradients of the logits, in their dtype, and of the per-expert scale.
    """
    scores = token_scores(logits, rule, formats)
    ds, d_factor = weights_vjp(dw, scores, experts, rule, formats, per_expert_scale)
    z = narrowed(logits, formats.score, formats.logits)
    if rule.score == "softmax":
        dz = softmax_vjp(ds, scores.full, formats)
    elif rule.score == "sigmoid":
        dz = multiply(ds, apply_slope(z, SIGMOID, formats.score), formats.score)
    elif rule.score == "sqrt_softplus":
        dz = multiply(ds, apply_slope(z, SQRT_SOFTPLUS, formats.score), formats.score)
    else:
        dz = ds
    return narrowed(dz, formats.logits, formats.score), d_factor
