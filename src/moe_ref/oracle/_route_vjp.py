r"""The gradient of routing from a kernel's own logits."""

from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._declared import routing_numerics
from moe_ref.oracle._formats import Formats, dtype_name
from moe_ref.oracle._params import floats
from moe_ref.oracle._route import route
from moe_ref.oracle._value import Value, given, scattered, settled
from moe_ref.oracle._vjp_route import logits_vjp
from moe_ref.spec import Numerics, RouterSpec


@np.errstate(all="ignore")
def route_vjp(
    logits: Any,
    spec: RouterSpec,
    cotangent: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    experts: Any = None,
    per_expert_scale: Any = None,
    dtype: str | None = None,
    numerics: Numerics | None = None,
) -> Value:
    r"""Gradient of $\sum w \odot \mathrm{cotangent}$ with respect to the logits.

    Args:
        logits: as for `route`, like everything that is not named here.
        spec: the rule.
        cotangent: [tokens, k], of the weights, in the order of the slots.
        bias: selection bias; it steers the choice, and its own gradient is 0.
        mask: [tokens] bool.
        experts: [tokens, k] ids in place of the choice.
        per_expert_scale: [choices].
        dtype: name of the dtype of the hidden states.
        numerics: of the kernel.

    Returns:
        [tokens, choices]; 0 for padding tokens.

    Raises:
        ValueError: shapes or ids that contradict the spec.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle, spec

        s = spec.RouterSpec(num_experts=2, k=1, score="sigmoid")
        g = oracle.route_vjp(np.array([[0.0, -1.0]]), s, np.array([[4.0]]))
        assert g.value.tolist() == [[1.0, 0.0]]
        ```
    """
    options = {"per_expert_scale": per_expert_scale, "dtype": dtype, "numerics": numerics}
    chosen = route(logits, spec, bias=bias, mask=mask, experts=experts, **options)
    formats = Formats(numerics or routing_numerics(spec, dtype_name(logits, "logits"), dtype))
    dw = floats(cotangent)
    shape = chosen.experts.shape
    require(dw.shape == shape, "cotangent", f"of shape {shape}", f"shape {dw.shape}")
    live = np.arange(shape[0]) if mask is None else np.flatnonzero(np.asarray(mask))
    scale = None if per_expert_scale is None else given(floats(per_expert_scale), formats.inputs)
    dz, _ = logits_vjp(
        given(dw[live], formats.weights),
        given(floats(logits)[live], formats.logits),
        chosen.experts[live],
        spec,
        formats,
        scale,
    )
    return settled(scattered(dz, live, shape[0], 0.0))
