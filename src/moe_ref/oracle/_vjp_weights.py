r"""The gradient of the combine weights with respect to the scores of the chosen experts."""

import numpy as np

from moe_ref.oracle._arithmetic import add, multiply, negate, quotient
from moe_ref.oracle._formats import UNIT, Formats
from moe_ref.oracle._scores import Scores
from moe_ref.oracle._sum import Sum
from moe_ref.oracle._value import Value, constant, correlated
from moe_ref.oracle._weights import chosen, denominator, denominator_error, normalized, renormalizes
from moe_ref.spec import RouterSpec


def weights_vjp(
    dw: Value,
    scores: Scores,
    experts: np.ndarray,
    spec: RouterSpec,
    formats: Formats,
    per_expert_scale: Value | None,
) -> tuple[Value, Value | None]:
    r"""Pull the cotangent of the weights back to the scores.

    With $w_i = s_i / D$: $ds_i = (dw_i - \sum_j dw_j w_j\,\partial D / \partial s_i) / D$.

    Args:
        dw: [tokens, k].
        scores: of all choices.
        experts: [tokens, k], -1 for an empty slot.
        spec: the rule.
        formats: of the kernel.
        per_expert_scale: [choices] or None.

    Returns:
        The cotangents of the scores, [tokens, choices], and of `per_expert_scale`. For
        `softmax_selected` the former is already that of the logits.
    """
    format = formats.score
    w = normalized(scores, experts, spec, formats)
    scale = spec.scale if spec.scale_site == "weight" else 1.0
    d_factor = None
    if per_expert_scale is not None:
        scaled = multiply(w, constant(scale, w.shape, format), format)
        d_factor = _by_expert(multiply(dw, scaled, format), experts, spec, formats)
        dw = multiply(dw, chosen(per_expert_scale, experts), format)
    if scale != 1:
        dw = multiply(dw, constant(scale, w.shape, format), format)
    if spec.score == "softmax_selected":
        ds = softmax_vjp(dw, w, formats)
    elif renormalizes(spec):
        ds = _divided(dw, w, chosen(scores.full, experts), spec, formats)
    else:
        ds = dw
    return _by_choice(ds, experts, spec, formats), d_factor


def softmax_vjp(dp: Value, p: Value, formats: Formats) -> Value:
    r"""$dz_i = p_i\,(dp_i - \sum_j p_j\,dp_j)$ over the last axis."""
    mean = row_sums(multiply(dp, p, formats.score), formats)
    return multiply(p, add(dp, negate(mean), formats.score), formats.score)


def row_sums(x: Value, formats: Formats) -> Value:
    """The sum over the last axis, kept: [tokens, 1]."""
    total = Sum((x.shape[0], 1))
    everyone = np.arange(x.shape[0])
    for column in range(x.shape[1]):
        total.add(everyone, x[:, column : column + 1])
    return total.total(x.shape[1], formats.accumulate)


def _divided(dw: Value, w: Value, s: Value, spec: RouterSpec, formats: Formats) -> Value:
    format = formats.score
    divisor = denominator(s.value, spec)
    nothing = divisor == 0
    safe = np.where(nothing, 1.0, divisor)
    units = 4 * (format.unit + UNIT)

    def below(error):
        of_divisor = denominator_error(s.value, error, error, safe, spec, format)
        return of_divisor + units * safe

    d = correlated(safe, below(s.bound), below(s.worst))
    mean = row_sums(multiply(dw, w, format), formats)
    if spec.renormalize == "clamp":
        mean = _where_sum_counts(mean, s, spec)
    elif spec.renormalize == "p_norm":
        mean = multiply(mean, _slope_of_norm(w, spec, units), format)
    difference = add(dw, negate(mean), format)
    # A kernel may also divide each part on its own and subtract then.
    apart = units * (dw.size + mean.size)
    difference = correlated(difference.value, difference.bound + apart, difference.worst + apart)
    result = quotient(difference, d)
    return result.map(lambda part: np.where(nothing, 0.0, part))


def _where_sum_counts(mean: Value, s: Value, spec: RouterSpec) -> Value:
    """The denominator max(sum, eps) moves with the sum only above eps; unknown near it."""
    total, eps = s.value.sum(axis=1, keepdims=True), spec.renormalize_eps

    def near(error):
        return np.abs(total - eps) <= error.sum(axis=1, keepdims=True)

    value = np.where(total > eps, mean.value, 0.0)
    reach = np.abs(mean.value)
    bound = np.where(near(s.bound), reach + mean.bound, np.where(total > eps, mean.bound, 0.0))
    worst = np.where(near(s.worst), reach + mean.worst, np.where(total > eps, mean.worst, 0.0))
    return correlated(value, bound, worst)


def _slope_of_norm(w: Value, spec: RouterSpec, unit: float) -> Value:
    r"""$\partial D / \partial s_i = w_i^{p-1}$."""
    p = spec.renormalize_p
    some = w.value > 0
    base = np.where(some, w.value, 1.0)
    value = np.where(some | (p == 1), base ** (p - 1), 0.0)

    def error(of_w):
        relative = np.where(some, of_w / base, 0.0)
        known = relative < 1
        grown = -np.log1p(-np.where(known, relative, 0.0)) * abs(p - 1)
        rounding = 0.0 if p == 1 else unit * 4 * (1 + np.abs((p - 1) * np.log(base)))
        return np.where(known, value * np.expm1(grown + rounding), np.inf)

    return correlated(value, error(w.bound), error(w.worst))


def _by_choice(ds: Value, experts: np.ndarray, spec: RouterSpec, formats: Formats) -> Value:
    """Put each slot's cotangent at its expert: [tokens, choices]."""
    total = Sum((experts.shape[0] * spec.num_choices, 1))
    token, slot = np.nonzero(experts >= 0)
    flat = token * spec.num_choices + experts[token, slot]
    total.add(flat, ds[token, slot][:, None])
    repeated = np.bincount(flat, minlength=1).max(initial=0) > 1
    terms = experts.shape[1] if repeated else 0
    whole = total.total(terms, formats.score)
    return whole.map(lambda part: part.reshape(experts.shape[0], spec.num_choices))


def _by_expert(d: Value, experts: np.ndarray, spec: RouterSpec, formats: Formats) -> Value:
    """Sum over all slots of an expert: [choices]."""
    total = Sum((spec.num_choices, 1))
    token, slot = np.nonzero(experts >= 0)
    ids = experts[token, slot]
    total.add(ids, d[token, slot][:, None])
    most = int(np.bincount(ids, minlength=1).max(initial=0))
    return total.total(most, formats.accumulate)[:, 0]
