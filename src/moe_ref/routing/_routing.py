"""The result of routing."""

import equinox as eqx
from jaxtyping import Array, Float, Int


class Routing(eqx.Module):
    """Which experts each token visits, and with what weight.

    Attributes:
        experts: ids, best first; -1 is an empty slot, ids from `num_experts` on are zero experts.
        weights: factor of each slot, 0 in an empty one.
        scores: score of every expert, without selection bias.
        logits: raw router logits, without selection bias; 0 for padding tokens.
    """

    experts: Int[Array, "tokens k"]
    weights: Float[Array, "tokens k"]
    scores: Float[Array, "tokens choices"]
    logits: Float[Array, "tokens choices"]
