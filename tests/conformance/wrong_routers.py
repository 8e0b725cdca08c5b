"""A router in plain NumPy with switches for the faults that routers have had."""

import functools

import numpy as np


def route(logits, spec, bias=None, mask=None, *, fault=""):
    dtype = np.asarray(logits).dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    z = np.asarray(logits).astype(wide)
    if fault == "clips logits":
        z = np.clip(z, -15, 15)
    with np.errstate(all="ignore"):
        s = _scores(z, spec)
        by_logit = spec.choose_by == "logit" and fault != "always by score"
        choice = z if spec.score == "softmax_selected" or by_logit else s
        if bias is not None and fault != "forgets the bias":
            choice = choice + np.asarray(bias).astype(wide)
        if bias is not None and fault == "bias in the weight":
            s = choice
        if spec.num_groups > 1:
            choice = _limited(choice, spec, fault)
        ids = _best(choice, spec.k, fault)
        if fault == "same expert twice" and spec.k > 1:
            ids[:, 1] = ids[:, 0]
        w = _weights(
            np.take_along_axis(z if spec.score == "softmax_selected" else s, ids, 1), spec, fault
        )
    if mask is not None and fault != "ignores the mask":
        real = np.asarray(mask)
        ids = np.where(real[:, None], ids, -1)
        w = np.where(real[:, None], w, 0)
    if fault == "NaN spreads" and np.isnan(z).any():
        w = w * np.nan
    w = w.astype(np.complex64) if fault == "complex weights" else w.astype(dtype)
    return ids.astype(np.float32 if fault == "ids as floats" else np.int32), w


def _scores(z, spec):
    if spec.score == "softmax":
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)
    if spec.score == "sigmoid":
        return 1 / (1 + np.exp(-z))
    if spec.score == "sqrt_softplus":
        return np.sqrt(np.logaddexp(0, z))
    return z


def _best(c, k, fault):
    c = np.where(np.isnan(c), np.inf, c)
    if fault == "ties to the higher index":
        return c.shape[1] - 1 - np.argsort(-c[:, ::-1], axis=1, kind="stable")[:, :k]
    return np.argsort(-c, axis=1, kind="stable")[:, :k]


def _limited(c, spec, fault):
    groups = c.reshape(len(c), spec.num_groups, -1)
    if (spec.group_score == "max") != (fault == "other group score"):
        score = groups.max(axis=2)
    else:
        top = groups.shape[2] if fault == "sums whole groups" else spec.group_top
        score = np.sort(groups, axis=2)[:, :, -top:].sum(axis=2)
    kept = _best(score, spec.groups_kept, fault)
    allowed = np.zeros(score.shape, bool)
    np.put_along_axis(allowed, kept, True, 1)
    away = 0.0 if fault == "rejected groups get 0" else -np.inf
    return np.where(np.repeat(allowed, groups.shape[2], 1), c, away).astype(c.dtype)


def _weights(w, spec, fault):
    if spec.score == "softmax_selected":
        w = np.exp(w - w.max(axis=1, keepdims=True))
        w = w / w.sum(axis=1, keepdims=True)
    rule = spec.renormalize
    if spec.k == 1 and spec.renormalize_only_above_one and fault != "normalises a single choice":
        rule = "none"
    if fault == "never renormalises":
        rule = "none"
    if rule == "sum":
        total = w.sum(axis=1, keepdims=True)
        total = total + (0 if fault == "forgets eps" else np.asarray(spec.renormalize_eps, w.dtype))
        w = w / np.where(total == 0, 1, total)
    elif rule == "clamp":
        w = w / np.maximum(w.sum(axis=1, keepdims=True), spec.renormalize_eps)
    elif rule == "p_norm":
        p = 2 if fault == "always the 2-norm" else spec.renormalize_p
        w = w / (w**p).sum(axis=1, keepdims=True) ** (1 / p)
    if fault != "scale only when renormalised" or spec.renormalize != "none":
        w = w * np.asarray(spec.scale, w.dtype)
    return np.full_like(w, w.mean()) if fault == "uniform weights" and w.size else w


WRONG = {
    "forgets the bias": {"RTE-01"},
    "bias in the weight": {"RTE-04"},
    "same expert twice": {"RTE-05"},
    "ignores the mask": {"RTE-06"},
    "NaN spreads": {"RTE-05"},
    "ties to the higher index": {"RTE-02"},
    "other group score": {"RTE-01"},
    "rejected groups get 0": {"RTE-03"},
    "never renormalises": {"RTE-07"},
    "scale only when renormalised": {"RTE-07"},
    "uniform weights": {"RTE-01", "RTE-09"},
    "forgets eps": {"RTE-01"},
    "sums whole groups": {"RTE-01"},
    "always the 2-norm": {"RTE-01"},
    "normalises a single choice": {"RTE-01"},
    "always by score": {"RTE-11"},
    "clips logits": {"RTE-11"},
    "complex weights": {"RTE-01"},
    "ids as floats": {"RTE-01"},
}


def wrong(fault: str):
    return functools.partial(route, fault=fault)
