"""What counts as an expert id."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def known(
    experts: Int[Array, "*slots"], *, count: int, otherwise: int
) -> tuple[Int[Array, "*slots"], Bool[Array, "*slots"]]:
    """Ids as int32, with `otherwise` for those outside [0, count), and which were inside.

    Index operations disagree about ids outside: some wrap, some clip, some drop. All code that
    indexes by an id asks here first. Ids of a dtype narrower than int32 are widened before they
    are compared, wider ones are narrowed only after.
    """
    wide = experts if experts.dtype == jnp.int64 else experts.astype(jnp.int32)
    inside = (wide >= 0) & (wide < count)
    return jnp.where(inside, wide, jnp.full_like(wide, otherwise)).astype(jnp.int32), inside
