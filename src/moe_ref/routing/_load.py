"""How many slots each expert got, and what follows from it."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.routing._ids import known


@checked
def expert_load(
    experts: Int[Array, "tokens k"],
    *,
    num_experts: int,
    kept: Bool[Array, "tokens k"] | None = None,
) -> Int[Array, " {num_experts}"]:
    """Count the slots of each expert.

    Args:
        experts: chosen ids; anything outside [0, num_experts) is not counted.
        num_experts: length of the result.
        kept: count only these slots (after dropping, say).

    Returns:
        int32 counts.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import routing

        counts = routing.expert_load(jnp.array([[0, 1], [1, -1]]), num_experts=3)
        assert counts.tolist() == [1, 2, 0]
        ```
    """
    require(num_experts >= 1, "num_experts", "at least 1", num_experts)
    # A negative index would wrap, so empty slots are sent past the end, where they are dropped.
    index, _ = known(experts, count=num_experts, otherwise=num_experts)
    if kept is not None:
        index = jnp.where(kept, index, jnp.full_like(index, num_experts))
    return jnp.zeros(num_experts, jnp.int32).at[index.reshape(-1)].add(1, mode="drop")


@checked
def check_experts(experts: Int[Array, "tokens k"], *, num_choices: int) -> Int[Array, "tokens k"]:
    """Validate ids at run time, also under `jax.jit`: each is -1 or in [0, num_choices).

    Args:
        experts: ids to check.
        num_choices: number of real and zero experts.

    Returns:
        `experts`; use the result, or the check is optimised away.

    Raises:
        RuntimeError: an id is out of range (`equinox.error_if`).
    """
    _, inside = known(experts, count=num_choices, otherwise=0)
    bad = ~inside & (experts != -1)
    message = f"`experts` must be -1 or in [0, num_choices={num_choices})"
    return eqx.error_if(experts, jnp.any(bad), message)


@checked
def update_selection_bias(
    bias: Float[Array, " experts"],
    load: Int[Array, " experts"],
    *,
    rate: float | int,
    centre: bool = False,
) -> Float[Array, " experts"]:
    r"""Step the selection bias towards balance, without a gradient.

    $$b_e \leftarrow b_e + \gamma\,\mathrm{sign}(\bar n - n_e)$$

    Args:
        bias: selection bias.
        load: global counts before dropping (sum over devices first: the sign does not commute).
        rate: $\gamma$.
        centre: subtract the mean of the step (torchtitan); False as in DeepSeek-V3, Megatron-LM.

    Returns:
        The new bias.

    Raises:
        ValueError: a negative rate.

    References:
        Wang et al., Auxiliary-loss-free load balancing, 2024.
    """
    require(rate >= 0, "rate", "at least 0", rate)
    # In integers: a floating-point mean could miss equality, and n_e * experts overflows int32.
    total = jnp.sum(load, dtype=load.dtype)
    fair = total // load.shape[0]
    rest = total - fair * load.shape[0]
    sign = jnp.where(load == fair, jnp.sign(rest), jnp.sign(fair - load))
    step = sign.astype(bias.dtype) * jnp.asarray(rate, bias.dtype)
    return bias + (step - jnp.mean(step) if centre else step)
