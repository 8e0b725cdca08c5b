r"""The gradient of one feed-forward network, by hand.

With cotangent dy of the weighted output and the weight at the output,

$$dO = w\,dy, \quad dW_{out} = h^\top dO, \quad dH = dO\,W_{out}^\top, \quad
dG = dH \odot u\,\phi'(g), \quad dU = dH \odot \phi(g), \quad
dW_{in} = x^\top (dG, dU), \quad dx = (dG, dU)\,W_{in}^\top, \quad dw = dy \cdot o.$$
"""

import dataclasses
import math

import numpy as np

from moe_ref.oracle._activations import activate_slope, clamp, clamp_slope
from moe_ref.oracle._arithmetic import add, multiply, negate, with_factor
from moe_ref.oracle._dot import dot, dot_rows
from moe_ref.oracle._expert import Trace, limits
from moe_ref.oracle._formats import Formats
from moe_ref.oracle._params import FeedForward
from moe_ref.oracle._value import Value, concatenated, exact, narrowed
from moe_ref.spec import ExpertSpec


@dataclasses.dataclass(frozen=True)
class ExpertGradient:
    """Gradients of one network.

    Args:
        x: [rows, d_in].
        weight: [rows, 1] or None without a weight.
        w_in: [d_in, columns].
        w_out: [d_hidden, d_in].
        b_in: [columns] or None.
        b_out: [d_in] or None.
    """

    x: Value
    weight: Value | None
    w_in: Value
    w_out: Value
    b_in: Value | None
    b_out: Value | None


def expert_vjp(
    x: Value,
    dy: Value,
    t: Trace,
    p: FeedForward,
    spec: ExpertSpec,
    formats: Formats,
    weight: Value | None = None,
    site: str = "output",
    onward: bool = False,
) -> ExpertGradient:
    """Pull a cotangent back through one network.

    Args:
        x: [rows, d_in], as it was given, before any weight.
        dy: [rows, d_in], cotangent of `t.weighted`.
        t: what the rows met.
        p: the parameters.
        spec: what the network computes.
        formats: of the kernel.
        weight: [rows, 1] or None.
        site: where the weight multiplied.
        onward: a further matmul follows (of a latent layer).

    Returns:
        The gradients, before their last rounding.
    """
    wide, back = formats.accumulate, formats.cotangent
    at = None if weight is None else site
    w = exact(np.ones((dy.shape[0], 1)) if weight is None else weight.value)
    # What is linear in w is computed with its value; its error, common to the row, comes last.
    late = None if at == "input" else weight

    d_sum = multiply(dy, w, wide) if at in ("output", "hidden") else dy  # of h W_out, of b_out
    d_out = narrowed(d_sum if at == "output" else dy, back, wide)
    d_hidden = narrowed(dot(d_out, p.w_out.transposed, formats, onward=True), back, wide)
    d_plain = multiply(d_hidden, w, wide) if at == "hidden" else d_hidden
    d_before = narrowed(_through_activation(d_plain, t, spec, formats), back, wide)
    d_x = with_factor(dot(d_before, p.w_in.transposed, formats, onward=onward), late)

    d_weight = None
    if weight is not None:
        d_weight = _weight_vjp(x, dy, d_before, t, p, formats, at == "input")
    if weight is not None and at == "input":
        d_x = multiply(narrowed(d_x, back, wide), weight, wide)

    d_before = with_factor(d_before, late)
    read = with_factor(t.x, weight) if at == "input" else t.x
    hidden = with_factor(t.hidden, weight) if at == "hidden" else t.hidden
    d_out = with_factor(d_out, weight) if at == "output" else d_out
    return ExpertGradient(
        x=d_x,
        weight=d_weight,
        w_in=dot(read.transposed, d_before, formats),
        w_out=dot(hidden.transposed, d_out, formats),
        b_in=None if p.b_in is None else column_sums(d_before, formats),
        b_out=None if p.b_out is None else column_sums(with_factor(d_sum, late), formats),
    )


def _weight_vjp(
    x: Value, dy: Value, d_before: Value, t: Trace, p: FeedForward, formats: Formats, early: bool
) -> Value:
    r"""$dw = dy \cdot (h W_{out} + b_{out}) = dy\,W_{out}^\top \cdot h + dy \cdot b_{out}$.

    The two forms agree, and kernels use both. All elements of $h W_{out}$ share the errors of h,
    which therefore enter through the second form, and those of dy through the first, where they are
    independent. At the input (`early`) it is $x \cdot d W_{in}^\top = x W_{in} \cdot d$.
    """
    wide, back = formats.accumulate, formats.cotangent
    if early:
        left, right, w, bias, kept = x, d_before, p.w_in.transposed, None, back
    else:
        left, right, w, bias, kept = dy, t.plain, p.w_out, p.b_out, formats.expert_output
        right = narrowed(right, formats.hidden, wide)
    forth = narrowed(dot(exact(right.value), w, formats, bias=bias), kept, wide)
    return_ = narrowed(dot(exact(left.value), w.transposed, formats), back, wide)
    first, second = dot_rows(left, forth, formats), dot_rows(right, return_, formats)
    return dataclasses.replace(add(first, second, wide), value=first.value)


def _through_activation(d: Value, t: Trace, spec: ExpertSpec, formats: Formats) -> Value:
    """From the cotangent of the hidden layer to that of what the first matmul gives."""
    wide = formats.accumulate
    if t.up is None or t.linear is None:
        return multiply(d, activate_slope(t.gate, spec, wide), wide)
    limit, slack = limits(spec, formats)
    slope = activate_slope(clamp(t.gate, -math.inf, limit, slack), spec, wide)
    d_gate = multiply(multiply(d, t.linear, wide), slope, wide)
    d_up = multiply(d, t.active, wide)
    if spec.swiglu_limit is not None:
        d_gate = multiply(d_gate, clamp_slope(t.gate, -math.inf, limit, slack))
        d_up = multiply(d_up, _two_sided(t.up, limit, slack))
    return concatenated([d_gate, d_up], axis=1)


def _two_sided(up: Value, limit: float, slack: float) -> Value:
    """The slope of a clamp to [-limit, limit]: at both ends frameworks differ."""
    upper, lower = (clamp_slope(u, -math.inf, limit, slack) for u in (up, negate(up)))
    return multiply(upper, lower)


def column_sums(x: Value, formats: Formats) -> Value:
    """The sum over rows: [columns]."""
    ones = exact(np.ones((1, x.shape[0])))
    return dot(ones, x, formats)[0]
