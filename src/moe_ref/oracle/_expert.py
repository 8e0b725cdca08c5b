r"""One feed-forward network over its own rows.

$$(g, u) = x W_{in} + b_{in}, \quad h = \phi(\min(g, L)) \cdot (\mathrm{clip}(u, -L, L) + o),
\quad y = h W_{out} + b_{out}$$

and the weight w of each row at one of three sites: $w\,y$ (output), $(w h) W_{out} + w\,b_{out}$
(hidden), or x replaced by $w x$ (input).
"""

import dataclasses
import math

import numpy as np

from moe_ref.oracle._activations import activate, clamp
from moe_ref.oracle._arithmetic import add, multiply, with_factor
from moe_ref.oracle._dot import dot
from moe_ref.oracle._formats import Formats
from moe_ref.oracle._params import FeedForward
from moe_ref.oracle._value import Value, constant, exact, narrowed, rounded
from moe_ref.spec import ExpertSpec


@dataclasses.dataclass(frozen=True)
class Trace:
    """Everything a row meets on its way, for the backward pass.

    Args:
        x: [rows, d_in], what is read; times w at the input site.
        gate: [rows, d_hidden], before the clamp.
        up: [rows, d_hidden], before the clamp; None without a gate.
        active: phi of the clamped gate.
        linear: the clamped up plus its offset; None without a gate.
        plain: their product: the hidden layer before w and before its rounding.
        hidden: the second matmul's input; times w at the hidden site.
        output: [rows, d_in], of the network itself.
        weighted: [rows, d_in], what goes into the sum over slots; not yet rounded as a product.
    """

    x: Value
    gate: Value
    up: Value | None
    active: Value
    linear: Value | None
    plain: Value
    hidden: Value
    output: Value
    weighted: Value


def run_expert(
    x: Value,
    p: FeedForward,
    spec: ExpertSpec,
    formats: Formats,
    weight: Value | None = None,
    site: str = "output",
    onward: bool = False,
) -> Trace:
    """Compute one expert.

    Args:
        x: [rows, d_in].
        p: its parameters.
        spec: what it computes.
        formats: of the kernel.
        weight: [rows, 1] or None for none.
        site: where the weight multiplies.
        onward: a further matmul follows (of a latent layer).

    Returns:
        The `Trace`.
    """
    wide = formats.accumulate
    # The weight's own error comes last: it is common to the row. See `with_factor`.
    w = exact(np.ones((x.shape[0], 1)) if weight is None else weight.value)
    at = None if weight is None else site
    if at == "input":
        x = rounded(multiply(x, w), formats.inputs)
    before = dot(x, p.w_in, formats, bias=p.b_in, onward=True)
    if at == "input":
        without_bias = before.value - (0.0 if p.b_in is None else p.b_in.value)
        before = with_factor(before, weight, without_bias)
    before = narrowed(before, formats.pre_activation, wide)

    gate, up = before, None
    active, linear = _nonlinear(before, spec, formats)
    if spec.gated:
        gate, up = before[:, : spec.d_hidden], before[:, spec.d_hidden :]
    plain = active if linear is None else multiply(active, linear, wide)
    hidden = multiply(plain, w, wide) if at == "hidden" else plain
    hidden = narrowed(hidden, formats.hidden, wide)

    bias = p.b_out
    if at == "hidden" and bias is not None:
        bias = multiply(w, bias[None, :], wide)
    output = dot(hidden, p.w_out, formats, bias=bias, onward=onward)
    if at == "hidden":
        output = with_factor(output, weight)
    output = narrowed(output, formats.expert_output, wide)
    weighted = multiply(output, weight) if weight is not None and at == "output" else output
    return Trace(x, gate, up, active, linear, plain, hidden, output, weighted)


def _nonlinear(before: Value, spec: ExpertSpec, formats: Formats) -> tuple[Value, Value | None]:
    """The activated gate, and the up projection with its clamp and offset."""
    wide = formats.accumulate
    if not spec.gated:
        return activate(before, spec, wide), None
    limit, slack = limits(spec, formats)
    gate, up = before[:, : spec.d_hidden], before[:, spec.d_hidden :]
    active = activate(clamp(gate, -math.inf, limit, slack), spec, wide)
    linear = clamp(up, -limit, limit, slack)
    if spec.up_offset:
        offset = constant(spec.up_offset, linear.shape, wide)
        linear = narrowed(add(linear, offset, wide), formats.activation, wide)
    return narrowed(active, formats.activation, wide), linear


def limits(spec: ExpertSpec, formats: Formats) -> tuple[float, float]:
    """The clamp's limit, inf for none, and how far the kernel's own limit may be off."""
    if spec.swiglu_limit is None:
        return math.inf, 0.0
    return spec.swiglu_limit, formats.accumulate.misses(spec.swiglu_limit)
