"""How many rows an expert accepts, and who is dropped, as data."""

import dataclasses
import math
from fractions import Fraction
from typing import Literal

from moe_ref._errors import require, require_types

Rounding = Literal["ceil", "floor"]
"""Of a capacity that is no whole number."""
DropOrder = Literal["token_major", "k_major"]
"""Who is served first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CapacitySpec:
    r"""Slots of an expert: absolute, or a factor of the fair share.

    $C = \mathrm{round}(c \cdot T k / E)$, or the absolute number, then at most $T k$.
    Slots are handed out in `drop_order`; what finds none is dropped and contributes exactly 0.

    Args:
        expert_capacity: absolute number of slots of an expert; 0 drops everything.
        capacity_factor: $c$; read as the decimal it is written as, so that 1.1 of 100 is 110.
        capacity_rounding: `ceil` (Megatron-LM, DeepSpeed) or `floor` (MegaBlocks).
        drop_order: `token_major`: all choices of token 0, then of token 1, ... (MegaBlocks);
            `k_major`: every token's first choice, then every second choice, ... (GShard, Tutel).

    Exactly one of `expert_capacity` and `capacity_factor` is given.

    Raises:
        ValueError: fields that contradict each other, naming them and their values.
    """

    expert_capacity: int | None = None
    capacity_factor: float | None = None
    capacity_rounding: Rounding = "ceil"
    drop_order: DropOrder = "token_major"

    def __post_init__(self):
        require_types(self)
        slots = self.expert_capacity
        require(
            (slots is None) != (self.capacity_factor is None),
            "expert_capacity",
            "given, or `capacity_factor`, but not both",
            f"expert_capacity={slots}, capacity_factor={self.capacity_factor}",
        )
        require(slots is None or slots >= 0, "expert_capacity", "at least 0", slots)
        factor = self.capacity_factor
        require(
            factor is None or (math.isfinite(factor) and factor >= 0),
            "capacity_factor",
            "finite and at least 0",
            factor,
        )

    def slots(self, *, tokens: int, k: int, num_experts: int) -> int:
        """Slots of one expert for a batch of `tokens` tokens, in [0, tokens * k].

        Args:
            tokens: number of tokens, padding included.
            k: choices of a token.
            num_experts: experts with parameters.

        Returns:
            The number of slots, computed without floating-point error.
        """
        for name, value, least in (
            ("tokens", tokens, 0),
            ("k", k, 0),
            ("num_experts", num_experts, 1),
        ):
            require(
                isinstance(value, int) and value >= least, name, f"an int, at least {least}", value
            )
        if self.capacity_factor is None:
            exact = Fraction(self.expert_capacity or 0)
        else:
            exact = Fraction(repr(float(self.capacity_factor))) * tokens * k / num_experts
        whole = math.ceil(exact) if self.capacity_rounding == "ceil" else math.floor(exact)
        return min(whole, tokens * k)
