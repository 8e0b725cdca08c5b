"""Where the tokens of one rank go."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from moe_ref.routing._ids import known


def destinations(
    ids: Int[Array, "tokens k"], *, parts: int, experts: int, dedup: bool
) -> Int[Array, "tokens columns"]:
    """The ranks (or nodes) each token goes to, `parts` where it goes nowhere.

    Args:
        ids: chosen experts; ids outside [0, parts * experts) go nowhere.
        parts: how many ranks there are.
        experts: experts of a rank.
        dedup: every rank once, ascending, in min(k, parts) columns; else one column a slot.

    Returns:
        The columns. Rows that a token sends are summed in their order.
    """
    safe, inside = known(ids, count=parts * experts, otherwise=0)
    goal = jnp.where(inside, safe // experts, jnp.full_like(safe, parts))
    if not dedup:
        return goal
    ascending = jnp.sort(goal, axis=1)
    again = jnp.pad(ascending[:, 1:] == ascending[:, :-1], ((0, 0), (1, 0)))
    once = jnp.where(again, jnp.full_like(ascending, parts), ascending)
    return jnp.sort(once, axis=1)[:, : min(ids.shape[1], parts)]
