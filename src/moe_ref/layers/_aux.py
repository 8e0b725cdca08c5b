"""What a layer reports beside its output."""

import equinox as eqx
from jaxtyping import Array, Float, Int

from moe_ref.routing import Routing


class Losses(eqx.Module):
    """Auxiliary losses, unweighted: multiply by your coefficient and add to the loss.

    Attributes:
        balance: `routing.balance_loss` with `divide_by_k=True`: 1 at balance.
        z: `routing.z_loss`.
    """

    balance: Float[Array, ""]
    z: Float[Array, ""]


class Aux(eqx.Module):
    """What happened to the tokens.

    Attributes:
        routing: experts, weights, scores and logits.
        load: slots routed to each expert (zero experts last), before dropping; of all ranks.
        kept: slots each expert processed, of all ranks.
        losses: auxiliary losses.
        overflow: rows that found no place in a receive buffer, from rank to rank; None where the
            execution has no ranks.
    """

    routing: Routing
    load: Int[Array, " choices"]
    kept: Int[Array, " choices"]
    losses: Losses
    overflow: Int[Array, "sources destinations"] | None = None
