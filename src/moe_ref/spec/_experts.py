"""What one expert computes, as data."""

import dataclasses
import math
from typing import Literal

from moe_ref._errors import require, require_types

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu_squared"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertSpec:
    r"""One expert feed-forward network.

    Gated: $(g, u) = x W_{in} + b_{in}$, $h = \phi(\min(g, L)) \cdot (\mathrm{clip}(u, -L, L) + o)$,
    $y = h W_{out} + b_{out}$, with $\phi(g) = g\,\sigma(\alpha g)$ for `silu`.
    Not gated: $h = \phi(x W_{in} + b_{in})$.

    Args:
        d_hidden: width $F$ of the hidden layer.
        activation: `silu`, `gelu` (erf), `gelu_tanh`, `relu` or `relu_squared`.
        gated: two input projections, gate and up.
        expert_bias: biases $b_{in}$ and $b_{out}$.
        swiglu_alpha: $\alpha$, only with `silu`; 1.702 in gpt-oss.
        swiglu_limit: $L$, only with a gate; 7 in gpt-oss, 10 in DeepSeek-V4. None clamps nothing.
        up_offset: $o$, only with a gate; 1 in gpt-oss.

    Raises:
        ValueError: fields that contradict each other, naming them and their values.
    """

    d_hidden: int
    activation: Activation = "silu"
    gated: bool = True
    expert_bias: bool = False
    swiglu_alpha: float = 1.0
    swiglu_limit: float | None = None
    up_offset: float = 0.0

    @property
    def columns(self) -> int:
        """Columns of `w_in`: gate and up side by side, or up alone."""
        return 2 * self.d_hidden if self.gated else self.d_hidden

    def __post_init__(self):
        require_types(self)
        require(self.d_hidden >= 1, "d_hidden", "at least 1", self.d_hidden)
        limit = self.swiglu_limit
        require(limit is None or limit > 0, "swiglu_limit", "positive or None", limit)
        for name in ("swiglu_alpha", "up_offset"):
            require(math.isfinite(getattr(self, name)), name, "finite", getattr(self, name))
        require(limit is None or self.gated, "swiglu_limit", "None with gated=False", limit)
        require(
            self.up_offset == 0 or self.gated, "up_offset", "0 with gated=False", self.up_offset
        )
        require(
            self.swiglu_alpha == 1 or self.activation == "silu",
            "swiglu_alpha",
            f"1 with activation={self.activation!r}",
            self.swiglu_alpha,
        )
