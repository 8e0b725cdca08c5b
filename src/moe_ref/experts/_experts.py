"""Parameters of expert feed-forward networks."""

import equinox as eqx
from jaxtyping import Array, Float


class Experts(eqx.Module):
    """Parameters of all experts side by side, or of one shared expert (no leading axis).

    Attributes:
        w_in: gate columns, then up columns (`gated`), else up columns.
        w_out: down projection.
        b_in: bias of `w_in`.
        b_out: bias of `w_out`.
    """

    w_in: Float[Array, "*experts d_expert columns"]
    w_out: Float[Array, "*experts d_hidden d_expert"]
    b_in: Float[Array, "*experts columns"] | None
    b_out: Float[Array, "*experts d_expert"] | None
