r"""Routing of numbers with bounds: logits to scores, scores to experts, experts to weights."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._ambiguity import ambiguous
from moe_ref.oracle._choose import choice_scores, choose, groups_of
from moe_ref.oracle._formats import Formats, finer
from moe_ref.oracle._scores import Scores, scores_of
from moe_ref.oracle._value import Value, narrowed, scattered, settled
from moe_ref.oracle._weights import combine_weights
from moe_ref.spec import RouterSpec


@dataclasses.dataclass(frozen=True)
class RouteResult:
    """A routing with its bounds.

    Args:
        experts: [tokens, k] int64, -1 for an empty slot; best first where they were chosen.
        weights: [tokens, k].
        scores: [tokens, choices]; None where the routing was given.
        logits: [tokens, choices]; None where the routing was given. Rows of padding tokens are 0
            with bound inf in both: nothing is asked of them.
        ambiguous: [tokens] bool: rounding decides the choice.
        choice: [tokens, choices], what was compared; None where nothing was chosen.
        groups: [tokens, groups] or None.
        spec: the rule.
    """

    experts: np.ndarray
    weights: Value
    scores: Value | None
    logits: Value | None
    ambiguous: np.ndarray
    choice: Value | None = None
    groups: Value | None = None
    spec: RouterSpec | None = None


def decide(
    logits: Value,
    spec: RouterSpec,
    formats: Formats,
    *,
    bias: np.ndarray | None = None,
    experts: np.ndarray | None = None,
    per_expert_scale: Value | None = None,
) -> RouteResult:
    """Route tokens, none of them padding.

    Args:
        logits: [tokens, choices].
        spec: the rule.
        formats: of the kernel.
        bias: selection bias, [choices] or None.
        experts: [tokens, k] ids in place of the choice, or None.
        per_expert_scale: [choices] or None.

    Returns:
        The routing.
    """
    wide = finer(formats.score, formats.accumulate)
    scores = token_scores(logits, spec, formats)
    unsure = np.zeros(logits.shape[0], bool)
    choice = groups = None
    if experts is None:
        choice = choice_scores(logits, scores, bias, spec, wide)
        groups = groups_of(choice, spec, wide) if spec.num_groups > 1 else None
        experts = choose(choice, groups, spec)
        unsure = ambiguous(choice, _identity(logits, bias), groups, experts, spec)
    weights = combine_weights(scores, experts, spec, formats, per_expert_scale)
    return RouteResult(experts, weights, scores.full, logits, unsure, choice, groups, spec)


def token_scores(logits: Value, spec: RouterSpec, formats: Formats) -> Scores:
    """The scores of all choices, from logits rounded to the dtype of scores."""
    z = narrowed(logits, formats.score, formats.logits)
    return scores_of(z, spec, formats.score, finer(formats.score, formats.accumulate))


def with_padding(result: RouteResult, live: np.ndarray, tokens: int) -> RouteResult:
    """Put the routing of the `live` tokens among empty ones, for the user."""

    def spread(x, empty=np.inf):
        return None if x is None else settled(scattered(x, live, tokens, empty))

    experts = np.full((tokens, result.experts.shape[1]), -1, np.int64)
    unsure = np.zeros(tokens, bool)
    experts[live], unsure[live] = result.experts, result.ambiguous
    return dataclasses.replace(
        result,
        experts=experts,
        weights=spread(result.weights, 0.0),
        scores=spread(result.scores),
        logits=spread(result.logits),
        ambiguous=unsure,
        choice=spread(result.choice),
        groups=spread(result.groups),
    )


def given_ids(experts: Any, tokens: int, spec: RouterSpec) -> np.ndarray:
    """Check recorded ids.

    Raises:
        ValueError: another shape, or an id outside [-1, num_choices).
    """
    given = np.asarray(experts)
    require(
        given.shape == (tokens, spec.k) and given.dtype.kind in "iu",
        "experts",
        f"integers of shape [{tokens}, k={spec.k}]",
        f"{given.dtype} of shape {given.shape}",
    )
    ids = given.astype(np.int64)
    worst = ids[(ids < -1) | (ids >= spec.num_choices)]
    require(not worst.size, "experts", f"in [-1, {spec.num_choices})", worst[:1])
    return ids


def live_rows(mask: Any, tokens: int) -> np.ndarray:
    """Indices of the real tokens."""
    if mask is None:
        return np.arange(tokens)
    real = np.asarray(mask)
    fits = real.shape == (tokens,) and real.dtype == bool
    require(fits, "mask", f"bool of shape [{tokens}]", f"{real.dtype} of shape {real.shape}")
    return np.flatnonzero(real)


def _identity(logits: Value, bias: np.ndarray | None) -> np.ndarray:
    """Equal for experts whose choice is the same function of the same exact numbers."""
    identity = np.zeros(logits.shape, np.complex128)
    known = np.where(np.isnan(logits.value), np.inf, logits.value)
    identity.real = np.where(logits.worst == 0, known, np.nan)
    identity.imag = 0.0 if bias is None else np.where(np.isnan(bias), np.inf, bias)
    return identity
