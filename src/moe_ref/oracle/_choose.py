r"""Top-k with a total order: eligible first, then choice descending, then index ascending."""

import numpy as np

from moe_ref.oracle._arithmetic import add
from moe_ref.oracle._formats import Format
from moe_ref.oracle._scores import Scores
from moe_ref.oracle._value import Value, correlated, exact, rounded
from moe_ref.spec import RouterSpec


def choice_scores(
    logits: Value, scores: Scores, bias: np.ndarray | None, spec: RouterSpec, format: Format
) -> Value:
    """What the choice is made by: [tokens, choices].

    Its bound is what counts between two experts of one token: for softmax without a bias the
    normaliser is common to both and left out.
    """
    by_logit = spec.choose_by == "logit" or spec.score in ("softmax_selected", "none")
    if bias is not None:
        choice = logits if by_logit else scores.full
        known = rounded(exact(np.broadcast_to(bias, choice.shape)), format)
        return add(choice, known, format)
    return logits if by_logit else scores.own


def best(choice: np.ndarray, k: int, eligible: np.ndarray | None = None) -> np.ndarray:
    """Indices of the k best of one token, best first.

    NaN ranks as +inf, so that it shows; -0 equals +0; what is eligible beats what is not, even
    with a choice of -inf.

    Args:
        choice: [choices].
        k: how many.
        eligible: [choices] bool or None.

    Returns:
        [k] ids, distinct.
    """
    key = np.where(np.isnan(choice), np.inf, choice)
    last = np.zeros(key.shape, bool) if eligible is None else ~eligible
    return np.lexsort((-key, last))[:k]  # stable, so that the lower index comes first


def groups_of(choice: Value, spec: RouterSpec, format: Format) -> Value:
    """The score of each group of experts: its max, or the sum of its `group_top` largest.

    Args:
        choice: [tokens, choices].
        spec: the rule.
        format: of the sum.

    Returns:
        [tokens, groups].
    """
    shape = (choice.shape[0], spec.num_groups, spec.num_choices // spec.num_groups)
    split = choice.map(lambda array: array.reshape(shape))
    top = 1 if spec.group_score == "max" else spec.group_top

    def largest(array):
        ranked = np.where(np.isnan(array), np.inf, array)
        return -np.sort(-ranked, axis=-1)[..., :top].sum(axis=-1)

    value = largest(split.value)
    size = np.abs(-np.sort(-split.size, axis=-1)[..., :top]).sum(axis=-1)

    def error(bound):
        high, low = largest(split.value + bound) - value, value - largest(split.value - bound)
        rounding = (top - 1) * format.unit * size
        return np.where(np.isfinite(value), np.maximum(high, low) + rounding, 0.0)

    return correlated(value, error(split.bound), error(split.worst))


def choose(choice: Value, groups: Value | None, spec: RouterSpec) -> np.ndarray:
    """The k experts of each token: [tokens, k]."""
    chosen = np.zeros((choice.shape[0], spec.k), np.int64)
    for token, scores in enumerate(choice.value):
        eligible = None
        if groups is not None:
            eligible = members(best(groups.value[token], spec.groups_kept), spec)
        chosen[token] = best(scores, spec.k, eligible)
    return chosen


def members(kept: np.ndarray, spec: RouterSpec) -> np.ndarray:
    """Which experts belong to the kept groups: [choices] bool."""
    group = np.arange(spec.num_choices) // (spec.num_choices // spec.num_groups)
    return np.isin(group, kept)
