r"""Scores of the router: softmax, sigmoid, $\sqrt{\mathrm{softplus}}$, or the logit itself."""

import dataclasses

import numpy as np

from moe_ref.oracle._dot import gamma_worst
from moe_ref.oracle._formats import UNIT, Format
from moe_ref.oracle._smooth import SIGMOID, SQRT_SOFTPLUS, apply
from moe_ref.oracle._value import Value, correlated
from moe_ref.spec import RouterSpec

_EXP_HALF_ULPS = 4


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores with two errors.

    Args:
        full: the scores, with the whole error of each.
        own: the same scores with the error that is not common to all experts of the token: what
            counts when two of them are compared or divided by each other.
    """

    full: Value
    own: Value


def scores_of(logits: Value, spec: RouterSpec, format: Format, accumulate: Format) -> Scores:
    """The scores of a token's experts.

    Args:
        logits: [tokens, choices], already in `format`.
        spec: names the score.
        format: in which scores are computed and stored.
        accumulate: format of the running sum of softmax.

    Returns:
        Scores of shape [tokens, choices].
    """
    if spec.score == "softmax":
        return softmax(logits, format, accumulate)
    if spec.score == "sigmoid":
        score = apply(logits, SIGMOID, format)
    elif spec.score == "sqrt_softplus":
        score = _sqrt_softplus(logits, format)
    else:
        score = logits
    score = correlated(score.value, score.bound, score.worst)
    return Scores(score, score)


def softmax(
    z: Value, format: Format, accumulate: Format, valid: np.ndarray | None = None
) -> Scores:
    r"""$p_i = e^{z_i} / \sum_j e^{z_j}$ over the last axis, where `valid`.

    With $d_i = |z_i - \max z|$, whose rounding the exponential amplifies, expert i's own relative
    error is $\rho_i = b_i + u(d_i + 2c + 2)$, and the normaliser adds $\sum_j p_j \rho_j$ and its
    sum, the same for all i.

    Args:
        z: logits.
        format: of exponentials and quotients.
        accumulate: of the sum.
        valid: entries that take part; the others get 0.

    Returns:
        The probabilities; 0 where nothing is valid.
    """
    valid = np.ones(z.shape, bool) if valid is None else valid
    top = np.max(z.value, axis=-1, keepdims=True, where=valid, initial=-np.inf)
    distance = np.where(valid, top - z.value, 0.0)
    raw = np.where(valid, np.exp(-distance), 0.0)
    total = raw.sum(axis=-1, keepdims=True)
    p = raw / np.where(valid.any(axis=-1, keepdims=True), total, 1.0)
    unit, c = format.unit + UNIT, _EXP_HALF_ULPS
    sum_error = gamma_worst(z.shape[-1], accumulate.unit) + gamma_worst(z.shape[-1], UNIT)

    def errors(bound):
        live = valid & (p > 0)
        rho = np.where(live, bound + unit * (np.where(live, distance, 0.0) + 2 * c + 2), 0.0)
        shared = (p * rho).sum(axis=-1, keepdims=True)
        shared = shared + 2 * np.max(np.where(live, bound, 0.0), axis=-1, keepdims=True) ** 2
        both = rho + shared + sum_error + 2 * unit
        floor = np.where(valid, 4 * format.eta, 0.0)
        return p * np.expm1(rho) + floor, np.where(live, p * np.expm1(both), 0.0) + floor

    own, full = errors(z.bound)
    own_worst, worst = errors(z.worst)
    return Scores(correlated(p, full, worst), correlated(p, own, own_worst))


def _sqrt_softplus(logits: Value, format: Format) -> Value:
    score = apply(logits, SQRT_SOFTPLUS, format)
    # Where e^l itself may be flushed, its root is lost with it.
    lost = np.where(score.value**2 < 4 * format.eta, score.value + 2 * format.eta**0.5, 0.0)
    return correlated(score.value, score.bound + lost, score.worst + lost)
