"""One expert network over its rows, whatever multiplies the matrices."""

from collections.abc import Callable

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype
from moe_ref._typing import checked
from moe_ref.experts._activation import activation
from moe_ref.experts._experts import Experts
from moe_ref.spec import ExpertSpec, WeightSite

Matmul = Callable[[Array, Array], Array]


@checked
def feed_forward(
    x: Float[Array, "*rows d_expert"],
    experts: Experts,
    *,
    spec: ExpertSpec,
    matmul: Matmul,
    bias_matmul: Matmul | None = None,
    weights: Float[Array, "*rows 1"] | None = None,
    weight_site: WeightSite = "output",
) -> Float[Array, "*rows d_expert"]:
    r"""Two matrix products with an activation between them.

    $$h = \mathrm{act}(x W_{in} + b_{in}), \qquad y = h W_{out} + b_{out}$$

    What the backward pass reads has names, by which the policies of `jax.checkpoint` choose what is
    kept and what is computed again: `moe_rows` $x$, `moe_projected` $x W_{in} + b_{in}$ in the
    accumulator's dtype, `moe_hidden` $h$.

    Args:
        x: rows, each belonging to one expert.
        experts: parameters.
        spec: the expert.
        matmul: multiplies rows with the weight of their expert, `(rows, weight) -> rows`, with a
            float32 result at least; what it does with unfilled rows is its business.
        bias_matmul: what brings each row its bias, as the product of ones and biases; None:
            `matmul`. One that rounds its operands must not round biases.
        weights: routing weight of each row, for `weight_site` `hidden` and `input`.
        weight_site: see `LayerSpec.weight_site`; `output` leaves the weights to the combine.

    Returns:
        Rows in the accumulator's dtype: gate, up and output are not rounded, the hidden layer is
        rounded once, to the dtype of `x`.

    Raises:
        ValueError: `weights` and `weight_site` contradict each other, or shapes do not fit.

    Example:
        ```python
        import equinox as eqx
        import jax
        from moe_ref import layers, spec

        small = spec.preset("mixtral-8x7b").replace(d_model=64, d_hidden=48)
        layer = layers.MoE(small, key=jax.random.key(0))
        x = jax.random.normal(jax.random.key(1), (10, 64))
        keep = jax.checkpoint_policies.save_only_these_names("moe_rows")
        run = jax.checkpoint(lambda layer, x: layer(x)[0].sum(), policy=keep)
        gradient = eqx.filter_grad(lambda layer: run(layer, x))(layer)
        ```
    """
    require(
        (weights is None) == (weight_site == "output"),
        "weights",
        f"given exactly where they are applied here (weight_site={weight_site!r})",
        None if weights is None else "an array",
    )
    add = matmul if bias_matmul is None else bias_matmul
    wide = accumulator_dtype(x.dtype)
    ones = jnp.ones((*x.shape[:-1], 1), x.dtype)
    at_hidden = weights.astype(wide) if weights is not None and weight_site == "hidden" else None
    if weights is not None and weight_site == "input":
        x = (x.astype(wide) * weights.astype(wide)).astype(x.dtype)
    x = checkpoint_name(x, "moe_rows")
    projected = matmul(x, experts.w_in)
    if experts.b_in is not None:
        projected = projected + add(ones, experts.b_in[..., None, :])
    projected = checkpoint_name(projected, "moe_projected")
    hidden = activation(projected, spec=spec)
    if at_hidden is not None:
        hidden = hidden * at_hidden
    hidden = checkpoint_name(hidden.astype(x.dtype), "moe_hidden")
    output = matmul(hidden, experts.w_out)
    if experts.b_out is not None:
        bias = add(ones, experts.b_out[..., None, :])
        output = output + (bias if at_hidden is None else bias * at_hidden)
    return output
