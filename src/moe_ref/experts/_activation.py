"""From projections to the hidden layer."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.spec import ExpertSpec


@checked
def activation(
    projected: Float[Array, "*rows columns"], *, spec: ExpertSpec
) -> Float[Array, "*rows d_hidden"]:
    r"""The hidden layer, in the dtype of its input.

    $$h = \phi(\min(g, L)) \cdot (\mathrm{clip}(u, -L, L) + o) \quad\text{or}\quad h = \phi(u)$$

    with $\phi$: `silu` $g\,\sigma(\alpha g)$, `gelu` $g\,\Phi(g)$, `gelu_tanh` its tanh
    approximation, `relu`, `relu_squared`.

    Args:
        projected: $x W_{in} + b_{in}$: gate columns, then up columns; up alone if not gated.
        spec: the expert.

    Returns:
        Hidden activations.

    Raises:
        ValueError: `projected` has not `spec.columns` columns.

    Special cases:
        Clamped values pass no gradient; at the limit itself the gradient passes, as in PyTorch.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import experts, spec

        relu = spec.ExpertSpec(d_hidden=3, activation="relu")
        h = experts.activation(jnp.ones((2, 6)), spec=relu)
        assert h.tolist() == [[1.0] * 3] * 2
        ```
    """
    require(
        projected.shape[-1] == spec.columns,
        "projected",
        f"of {spec.columns} columns",
        f"shape {projected.shape}",
    )
    if not spec.gated:
        return _phi(projected, spec)
    gate, up = projected[..., : spec.d_hidden], projected[..., spec.d_hidden :]
    if spec.swiglu_limit is not None:
        limit = jnp.asarray(spec.swiglu_limit, gate.dtype)
        gate = jnp.where(gate > limit, limit, gate)
        up = jnp.where(up > limit, limit, jnp.where(up < -limit, -limit, up))
    if spec.up_offset:
        up = up + jnp.asarray(spec.up_offset, up.dtype)
    return _phi(gate, spec) * up


def _phi(x: Float[Array, "*rows d"], spec: ExpertSpec) -> Float[Array, "*rows d"]:
    if spec.activation == "silu":
        slope = jnp.asarray(spec.swiglu_alpha, x.dtype)
        return x * jax.nn.sigmoid(slope * x)
    if spec.activation == "gelu":
        return jax.nn.gelu(x, approximate=False)
    if spec.activation == "gelu_tanh":
        return jax.nn.gelu(x, approximate=True)
    # `where` keeps a NaN, and gives the gradient 0 at 0 as PyTorch does.
    relu = jnp.where(x <= 0, jnp.zeros_like(x), x)
    return relu * relu if spec.activation == "relu_squared" else relu
