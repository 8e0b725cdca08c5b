"""Which experts: group-limited top-k with a total order."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.spec import RouterSpec


@checked
def choose(
    choice: Float[Array, "tokens choices"], *, spec: RouterSpec
) -> Int[Array, "tokens {spec.k}"]:
    """The k experts with the largest choice scores.

    Args:
        choice: what is compared: scores or logits, plus the selection bias.
        spec: `k` and the group rule are read.

    Returns:
        Distinct ids in [0, choices), int32, in the order chosen.

    Raises:
        ValueError: `choice` has not `spec.num_choices` columns.

    Special cases:
        Ties: the lower index first, for experts and for groups. -0 equals 0. NaN ranks as +inf,
        so that it shows in the weights. An eligible -inf still precedes every expert of a
        rejected group. No gradient passes.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref import routing, spec

        tied = jnp.zeros((1, 8))
        rule = spec.RouterSpec(num_experts=8, k=3)
        assert routing.choose(tied, spec=rule).tolist() == [[0, 1, 2]]
        ```
    """
    tokens, choices = choice.shape
    require(
        choices == spec.num_choices,
        "choice",
        f"one column for each of num_choices={spec.num_choices}",
        f"shape {choice.shape}",
    )
    ranked = _comparable(lax.stop_gradient(choice))
    if spec.num_groups > 1:
        size = choices // spec.num_groups
        grouped = ranked.reshape(tokens, spec.num_groups, size)
        if spec.group_score == "max":
            group_scores = jnp.max(grouped, axis=-1)
        else:
            group_scores = jnp.sum(lax.top_k(grouped, spec.group_top)[0], axis=-1)
        best = lax.top_k(_comparable(group_scores), spec.groups_kept)[1]
        kept = jnp.any(
            best[:, :, None] == jnp.arange(spec.num_groups, dtype=best.dtype)[None, None, :], axis=1
        )
        lowest = jnp.asarray(jnp.finfo(ranked.dtype).min, ranked.dtype)
        eligible = jnp.repeat(kept, size, axis=1)
        ranked = jnp.where(eligible, jnp.maximum(ranked, lowest), -jnp.inf)
    return lax.top_k(ranked, spec.k)[1].astype(jnp.int32)


def _comparable(values: Float[Array, "tokens n"]) -> Float[Array, "tokens n"]:
    """Values whose IEEE total order is the order of the contract."""
    values = jnp.where(jnp.isnan(values), jnp.full_like(values, jnp.inf), values)
    return jnp.where(values == 0, jnp.zeros_like(values), values)
