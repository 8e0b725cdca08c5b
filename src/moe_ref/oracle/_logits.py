r"""Router logits: $l = x W^\top + \beta$, and the soft cap $c \tanh(l / c)$."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref.oracle._dot import dot
from moe_ref.oracle._formats import Format, Formats, finer
from moe_ref.oracle._params import leaf, needed, read
from moe_ref.oracle._smooth import apply, soft_cap
from moe_ref.oracle._value import Value, narrowed
from moe_ref.spec import LayerSpec


@dataclasses.dataclass(frozen=True)
class Router:
    """The router's parameters.

    Args:
        weight: [choices, d_model].
        bias: [choices] or None.
        selection_bias: [choices] or None.
        per_expert_scale: [choices] or None.
    """

    weight: Value
    bias: Value | None
    selection_bias: np.ndarray | None
    per_expert_scale: Value | None


def router_of(params: Any, spec: LayerSpec, formats: Formats) -> Router:
    """Read the router's parameters, rounded to the dtype of its projection."""
    record, choices = needed(params, "router", "params"), (spec.router.num_choices,)

    def part(name, shape, format):
        return read(needed(record, name, "router"), format, shape, f"router.{name}")

    weight = part("weight", (*choices, spec.d_model), formats.projection)
    rule = spec.router
    steer = leaf(record, "selection_bias") if rule.selection_bias else None
    return Router(
        weight=cast(weight, formats.projection),
        bias=part("bias", choices, formats.projection) if rule.router_bias else None,
        selection_bias=None if steer is None else read(steer, formats.score, choices, "b").value,
        per_expert_scale=(
            part("per_expert_scale", choices, formats.inputs) if rule.per_expert_scale else None
        ),
    )


def logits_of(x: Value, router: Router, spec: LayerSpec, formats: Formats) -> tuple[Value, Value]:
    """The logits of each token before and after the soft cap: [tokens, choices]."""
    wide = finer(formats.accumulate, formats.projection)
    operand = cast(x, formats.projection)
    before = dot(operand, router.weight.transposed, formats, bias=router.bias, accumulate=wide)
    before = narrowed(before, formats.logits, wide)
    cap = spec.router.logit_softcap
    return before, before if cap is None else apply(before, soft_cap(cap), formats.logits)


def cast(x: Value, format: Format) -> Value:
    """Exactly known numbers as another dtype: the nearest ones, exactly known again."""
    return dataclasses.replace(x, value=format.nearest(x.value))
