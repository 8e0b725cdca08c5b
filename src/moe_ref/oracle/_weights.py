r"""Combine weights from the scores of the chosen experts."""

import numpy as np

from moe_ref.oracle._arithmetic import multiply
from moe_ref.oracle._formats import UNIT, Format, Formats, finer
from moe_ref.oracle._scores import Scores, softmax
from moe_ref.oracle._value import Value, constant, correlated, narrowed
from moe_ref.spec import RouterSpec


def combine_weights(
    scores: Scores,
    experts: np.ndarray,
    spec: RouterSpec,
    formats: Formats,
    per_expert_scale: Value | None = None,
) -> Value:
    r"""$w = \mathrm{scale} \cdot \mathrm{renormalize}(s_{ids}) \cdot \mathrm{perexpert}_{ids}$.

    Args:
        scores: of all choices; the logits where `softmax_selected` normalises the chosen ones.
        experts: [tokens, k], -1 for an empty slot.
        spec: the rule.
        formats: `score` for the arithmetic, `weights` for the result.
        per_expert_scale: [num_choices] or None.

    Returns:
        [tokens, k], zero in empty slots.
    """
    w = normalized(scores, experts, spec, formats)
    if spec.scale != 1 and spec.scale_site == "weight":
        w = multiply(w, constant(spec.scale, w.shape, formats.score), formats.score)
    if per_expert_scale is not None:
        factor = chosen(per_expert_scale, experts)
        w = multiply(w, factor, formats.score)
    w = narrowed(w, formats.weights, formats.score)
    filled = experts >= 0
    return correlated(*(np.where(filled, part, 0.0) for part in (w.value, w.bound, w.worst)))


def normalized(scores: Scores, experts: np.ndarray, spec: RouterSpec, formats: Formats) -> Value:
    """The scores of the chosen, renormalised by the spec's rule; 0 in empty slots."""
    filled, format = experts >= 0, formats.score
    full, own = chosen(scores.full, experts), chosen(scores.own, experts)
    if spec.score == "softmax_selected":
        return softmax(full, format, finer(format, formats.accumulate), filled).full
    if not renormalizes(spec):
        return full
    s = full.value
    divisor = denominator(s, spec)
    nothing = divisor == 0
    safe = np.where(nothing, 1.0, divisor)
    w = s / safe
    unit, eps = format.unit + UNIT, spec.renormalize_eps

    def error(of_own, of_full):
        mine = of_own + (of_full - of_own) * _common_share(s, of_full, safe, spec)
        below = denominator_error(s, of_own, of_full, safe, spec, format)
        below = below + unit * (experts.shape[1] + 1 + _power_half_ulps(s, spec)) * safe
        below = below + format.misses(eps)
        room = safe - below
        bound = (mine + w * below) / np.where(room > 0, room, 1.0) + 2 * unit * w + format.eta
        bound = np.where(room > 0, np.minimum(bound, 1.0), 1.0)  # no weight exceeds 1
        return np.where(filled & ~nothing, bound, 0.0)

    return correlated(
        np.where(nothing, 0.0, w), error(own.bound, full.bound), error(own.worst, full.worst)
    )


def renormalizes(spec: RouterSpec) -> bool:
    """Whether the rule divides the chosen scores by anything."""
    only = spec.renormalize_only_above_one and spec.k == 1
    return spec.renormalize != "none" and not only


def denominator(s: np.ndarray, spec: RouterSpec) -> np.ndarray:
    """What the chosen scores of each token are divided by: [tokens, 1]."""
    if spec.renormalize == "p_norm":
        p = spec.renormalize_p
        return (s**p).sum(axis=-1, keepdims=True) ** (1 / p)
    total = s.sum(axis=-1, keepdims=True)
    if spec.renormalize == "sum":
        return total + spec.renormalize_eps
    return np.maximum(total, spec.renormalize_eps)


def chosen(of_all: Value, experts: np.ndarray) -> Value:
    """What belongs to each slot's expert, 0 in empty slots: [tokens, k]."""
    filled, ids = experts >= 0, np.where(experts >= 0, experts, 0)

    def pick(array):
        picked = array[ids] if array.ndim == 1 else np.take_along_axis(array, ids, axis=1)
        return np.where(filled, picked, 0.0)

    return of_all.map(pick)


def _common_share(s, of_full, safe, spec) -> np.ndarray | float:
    """How much of the error that all scores of a token share survives the division."""
    if spec.renormalize == "sum":
        return spec.renormalize_eps / safe
    if spec.renormalize == "clamp":
        slack = of_full.sum(axis=-1, keepdims=True)
        return (s.sum(axis=-1, keepdims=True) - slack <= spec.renormalize_eps).astype(np.float64)
    return 0.0


def denominator_error(s, of_own, of_full, safe, spec, format: Format) -> np.ndarray:
    """Error of the denominator from that of the scores, and of powers that underflow."""
    own, full = (error.sum(axis=-1, keepdims=True) for error in (of_own, of_full))
    if spec.renormalize == "sum":
        return own
    if spec.renormalize == "clamp":
        total, eps = s.sum(axis=-1, keepdims=True), spec.renormalize_eps
        return np.where(total + full < eps, 0.0, np.where(total - full > eps, own, full))
    p = spec.renormalize_p
    slope = np.where(of_own > 0, s ** (p - 1), 0.0)
    lost = 4 * s.shape[-1] * format.eta * (p > 1) / p
    return safe ** (1 - p) * ((slope * of_own).sum(axis=-1, keepdims=True) + lost)


def _power_half_ulps(s, spec) -> np.ndarray | float:
    """Error of the two powers of a p-norm, computed as exponentials of p log s."""
    p = spec.renormalize_p
    if spec.renormalize != "p_norm" or p == 1:
        return 0.0
    exponent = np.abs(np.log(np.where(s > 0, s, 1.0))).max(axis=-1, keepdims=True, initial=0.0)
    return 8 * (1 + 1 / p) * (1 + p * exponent)
