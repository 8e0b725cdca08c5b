"""What the oracle says about a layer's output."""

import dataclasses

import numpy as np

from moe_ref.oracle._decide import RouteResult
from moe_ref.oracle._value import Value


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """The output of a layer with its bounds.

    Args:
        output: [tokens, d_model].
        routing: experts, weights, scores and logits.
        contributions: [tokens, k, d_model] float32: what each slot adds to the output; 0 where it
            was empty or dropped.
        kept: [tokens, k] bool: the slots that were neither.
    """

    output: Value
    routing: RouteResult
    contributions: np.ndarray
    kept: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """The output, [tokens, d_model]."""
        return self.output.value

    @property
    def bound(self) -> np.ndarray:
        """A correct kernel stays within it with near certainty, [tokens, d_model]."""
        return self.output.bound

    @property
    def worst(self) -> np.ndarray:
        """A correct kernel stays within it whatever the data, [tokens, d_model]."""
        return self.output.worst

    @property
    def ambiguous(self) -> np.ndarray:
        """Where rounding decides the choice of experts, [tokens]: judge those by replay."""
        return self.routing.ambiguous

    @property
    def deaf_tokens(self) -> np.ndarray:
        """Fraction of each token's outputs that zero would pass: [tokens].

        1 means that nothing can be told about the token. Outputs known exactly are never deaf.
        """
        return deaf(self.output).mean(axis=1)

    def deaf_experts(self, num_choices: int) -> np.ndarray:
        """Fraction of an expert's contributions that could be left out unnoticed: [num_choices].

        NaN for an expert that no slot visits.
        """
        ids = np.where(self.kept, self.routing.experts, -1)
        hidden = np.abs(self.contributions) <= self.bound[:, None, :]
        return np.array(
            [
                hidden[mine].mean() if (mine := ids == e).any() else np.nan
                for e in range(num_choices)
            ]
        )

    @property
    def resolution(self) -> float:
        """Median bound over rms of the output: the relative size of fault that is seen."""
        return resolution(self.output)


def deaf(x: Value) -> np.ndarray:
    """Where zero would pass: |value| <= bound, and the bound is not 0."""
    return (np.abs(x.value) <= x.bound) & (x.bound > 0)


def resolution(x: Value) -> float:
    """Median bound over rms of the values; NaN where there are none, inf where all are 0."""
    seen = np.isfinite(x.value)
    if not seen.any():
        return float("nan")
    rms = float(np.sqrt(np.mean(x.value[seen] ** 2)))
    return float(np.median(x.bound[seen])) / rms if rms else float("inf")
