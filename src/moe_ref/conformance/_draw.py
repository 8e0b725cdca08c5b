"""From a few choices with a meaning and a seed to arrays; what `strategies` are built from."""

import math

import ml_dtypes
import numpy as np

from moe_ref._errors import require_choice
from moe_ref.spec import RouterSpec

TIES = ("none", "k", "group", "all")
KINDS = ("normal", "positive", "integers", "wide", "blocks", "cancelling", "subnormal")
SKEWS = ("two clusters", "one rank", "recorded")
_APART, _RANKS = 3.0, 8
# Slots of each of 16 experts (k=2, 4096 tokens) after 1500 steps of training on a regression task
# with 40 clusters of tokens and a balance loss of weight 0.003.
RECORDED = (1398, 813, 781, 780, 563, 540, 505, 430, 410, 388, 380, 356, 290, 247, 199, 112)
_QUANTILES = (np.arange(len(RECORDED)) + 0.5) / len(RECORDED)
PLACES = ("end", "anywhere")
# Logit of an expert that is chosen only for want of others: sigmoid and softmax keep it above 0.
_FAR = 20.0
# Wide data spans this many factors of two on either side of 1; MX formats share a scale in blocks.
_OCTAVES, _BLOCK = 12, 32


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def array(shape: tuple, dtype: str, magnitude: float, kind: str, seed: int) -> np.ndarray:
    """`strategies.arrays`, drawn."""
    require_choice(kind, "kind", KINDS)
    rng, target = np.random.default_rng(seed), _dtype(dtype)
    values = rng.standard_normal(shape)
    if kind == "positive":
        values = np.abs(values)
    elif kind == "integers":
        values = rng.integers(-8, 9, shape).astype(np.float64)
    elif kind == "wide":
        values = values * 2.0 ** rng.integers(-_OCTAVES, _OCTAVES + 1, shape)
    elif kind == "blocks":
        octaves = rng.integers(-_OCTAVES, _OCTAVES + 1, (*shape[:-1], -(-shape[-1] // _BLOCK)))
        values = values * np.repeat(2.0**octaves, _BLOCK, axis=-1)[..., : shape[-1]]
    elif kind == "cancelling":
        values[..., 1::2] = -values[..., : values.shape[-1] // 2 * 2 : 2] * (1 + 2.0**-9)
    elif kind == "subnormal":
        values = values * float(ml_dtypes.finfo(target).smallest_normal) / 8
    largest = float(ml_dtypes.finfo(target).max)
    return np.clip(values * magnitude, -largest, largest).astype(target)


def mx_array(shape: tuple, dtype: str, depth: int, poison: float, seed: int) -> np.ndarray:
    """`strategies.mx_arrays`, drawn."""
    require_choice(dtype, "dtype", ("bfloat16", "float16", "float32"))
    rng, info = np.random.default_rng(seed), ml_dtypes.finfo(_dtype(dtype))
    blocks = (*shape[:-1], -(-shape[-1] // _BLOCK), 1)
    exponent = rng.integers(info.minexp - info.nmant, info.maxexp, blocks)
    steps = np.array([1, 1.5, 1.75, 1.875, 1.9375, 1.984375])
    steps = rng.choice(steps, blocks) + rng.integers(-1, 2, blocks) * float(info.eps)
    amax = np.ldexp(np.where(rng.random(blocks) < 0.5, steps, rng.uniform(1, 2, blocks)), exponent)
    below = rng.integers(0, depth + 1, (*blocks[:-1], _BLOCK))
    values = amax * np.ldexp(rng.uniform(0.5, 1, below.shape), -below)
    np.put_along_axis(values, rng.integers(0, _BLOCK, blocks), amax, axis=-1)
    values = np.minimum(values, float(info.max)) * (rng.random(blocks) >= 1 / 16)
    values *= rng.choice([-1.0, 1.0], values.shape)
    poisoned = np.where(
        rng.random(blocks) < poison, rng.choice([np.nan, np.inf, -np.inf], blocks), 0.0
    )
    at = rng.integers(0, _BLOCK, blocks)
    there = np.take_along_axis(values, at, axis=-1)
    np.put_along_axis(values, at, np.where(poisoned == 0, there, poisoned), axis=-1)
    flat = values.reshape(*shape[:-1], -1)[..., : shape[-1]]
    return flat.astype(_dtype(dtype))


def _levels(rng: np.random.Generator, count: int, skew: float | str, idle: int) -> np.ndarray:
    """Logarithm of the popularity of each of `count` experts, `idle` of them far below the rest."""
    rank = np.arange(count)
    own = max(1, count // _RANKS)
    if skew == "one rank":
        level = np.where(rank < own, 0.0, -_FAR)
    elif skew == "recorded":
        level = np.log(np.interp((rank + 0.5) / count, _QUANTILES, RECORDED))
    elif skew == "two clusters":
        level = np.where(rank < count // 2, _APART, 0.0)
    elif isinstance(skew, str):
        require_choice(skew, "skew", SKEWS)
    elif math.isinf(skew):
        level = np.where(rank > 0, -_FAR, 0.0)
    else:
        level = -skew * np.log1p(rank)
    level[count - min(idle, max(count - 1, 0)) :] = -2 * _FAR
    if skew == "one rank":
        return np.roll(level, own * int(rng.integers(_RANKS)))
    return rng.permutation(level)


def _token_levels(
    rng: np.random.Generator, tokens: int, count: int, skew: float | str, idle: int
) -> np.ndarray:
    """The same for each token: in two clusters, half of the tokens prefer what others avoid."""
    level = _levels(rng, count, skew, idle)
    if skew != "two clusters":
        return np.broadcast_to(level, (tokens, count))
    mirrored = np.where(level < 0, level, _APART - level)
    return np.where(rng.random((tokens, 1)) < 0.5, level, mirrored)


def _shares(rng: np.random.Generator, count: int, skew: float | str, idle: int) -> np.ndarray:
    """Share of each expert; exactly 0 for those far below the rest."""
    level = _levels(rng, count, skew, idle)
    share = np.where(level > -_FAR, np.exp(level), 0.0)
    return share / share.sum()


def logits(
    spec: RouterSpec,
    tokens: int,
    skew: float | str,
    idle: int,
    ties: str,
    coarse: bool,
    dtype: str,
    seed: int,
) -> np.ndarray:
    """`strategies.logits`, drawn."""
    require_choice(ties, "ties", TIES)
    rng = np.random.default_rng(seed)
    # The k largest of log share + Gumbel noise are k draws without replacement.
    noise = rng.gumbel(size=(tokens, spec.num_choices))
    values = _token_levels(rng, tokens, spec.num_choices, skew, idle) + noise
    values = np.array(
        (values.astype(ml_dtypes.bfloat16) if coarse else values).astype(_dtype(dtype))
    )
    if ties == "all":
        values[:] = values[:, :1]
    if ties == "group" and 1 < spec.num_groups > spec.groups_kept:
        ranked = _rank(_group_scores(values, spec))
        last, first = ranked[:, spec.groups_kept - 1, None], ranked[:, spec.groups_kept, None]
        at = np.arange(spec.num_choices // spec.num_groups)
        source = np.take_along_axis(values, last * at.size + at, axis=1)
        np.put_along_axis(values, first * at.size + at, source, axis=1)
    if ties == "k":
        ranked = _rank(np.where(_eligible(values, spec), _choice(values, spec), -np.inf))
        limit = spec.groups_kept * spec.num_choices // spec.num_groups
        if spec.k < limit:
            last = np.take_along_axis(values, ranked[:, spec.k - 1, None], axis=1)
            np.put_along_axis(values, ranked[:, spec.k, None], last, axis=1)
    return values


def _rank(values: np.ndarray) -> np.ndarray:
    return np.argsort(-values, axis=1, kind="stable")


def _choice(values: np.ndarray, spec: RouterSpec) -> np.ndarray:
    """What is compared, up to a factor common to a token."""
    wide = values.astype(np.float64)
    if spec.choose_by == "logit" or spec.score in ("softmax_selected", "none"):
        return wide
    if spec.score == "softmax":
        return np.exp(wide - wide.max(axis=1, initial=-np.inf, keepdims=True))
    sigmoid = 1 / (1 + np.exp(-wide))
    return sigmoid if spec.score == "sigmoid" else np.sqrt(np.logaddexp(0, wide))


def _group_scores(values: np.ndarray, spec: RouterSpec) -> np.ndarray:
    grouped = _choice(values, spec).reshape(len(values), spec.num_groups, -1)
    top = 1 if spec.group_score == "max" else spec.group_top
    return np.sort(grouped, axis=2)[:, :, -top:].sum(axis=2)


def _eligible(values: np.ndarray, spec: RouterSpec) -> np.ndarray:
    if spec.num_groups == 1:
        return np.ones(values.shape, bool)
    place = np.argsort(_rank(_group_scores(values, spec)), axis=1, kind="stable")
    return np.repeat(place < spec.groups_kept, spec.num_choices // spec.num_groups, axis=1)


def routing(
    tokens: int,
    k: int,
    num_choices: int,
    skew: float | str,
    idle: int,
    repeats: bool,
    empty: float,
    seed: int,
) -> np.ndarray:
    """`strategies.routings`, drawn."""
    rng = np.random.default_rng(seed)
    if repeats:
        share = _shares(rng, num_choices, skew, idle)
        ids = rng.choice(num_choices, size=(tokens, k), p=share)
    else:
        level = _token_levels(rng, tokens, num_choices, skew, min(idle, num_choices - k))
        ids = _rank(level + rng.gumbel(size=(tokens, num_choices)))[:, :k]
    return np.where(rng.random(ids.shape) < empty, -1, ids).astype(np.int32)


def mask(tokens: int, padding: float, place: str, seed: int) -> np.ndarray:
    """`strategies.masks`, drawn."""
    require_choice(place, "place", PLACES)
    mask = np.arange(tokens) < tokens - math.ceil(padding * tokens)
    return mask if place == "end" else np.random.default_rng(seed).permutation(mask)


def group_sizes(
    experts: int,
    rows: int,
    skew: float | str,
    idle: int,
    idle_ends: bool,
    tail: float,
    dtype: str,
    seed: int,
) -> np.ndarray:
    """`strategies.group_sizes`, drawn."""
    rng = np.random.default_rng(seed)
    ends = int(idle_ends and experts >= 3)
    share = _shares(rng, experts - 2 * ends, skew, idle) if experts else np.zeros(0)
    owned = rows - math.ceil(tail * rows) if experts else 0
    sizes = np.pad(rng.multinomial(owned, share) if experts else share, ends)
    return np.minimum(sizes, np.iinfo(dtype).max).astype(dtype)
