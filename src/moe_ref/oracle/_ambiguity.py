r"""Which choices are within rounding of each other.

With choice score c and its bound b, the chosen set S is *ambiguous* if some other set is
acceptable, and a set S' is *acceptable* if

$$\min_{i \in S'} (c_i + b_i) \ge \max_{j \notin S'} (c_j - b_j).$$
"""

import itertools

import numpy as np

from moe_ref.oracle._choose import best, members
from moe_ref.oracle._value import Value
from moe_ref.spec import RouterSpec


def ambiguous(
    choice: Value, same: np.ndarray, groups: Value | None, chosen: np.ndarray, spec: RouterSpec
) -> np.ndarray:
    r"""Where the choice is decided by rounding: [tokens] bool.

    $\min_{i \in S} (c_i - b_i) \le \max_{j \notin S} (c_j + b_j)$, except between experts whose
    choice is the same function of the same exactly known numbers: these get equal scores whatever
    the rounding, and the tie rule decides, not the rounding.

    Args:
        choice: [tokens, choices].
        same: [tokens, choices], equal where logit and bias are known exactly and equal; NaN where
            they are not known exactly.
        groups: scores of the groups, or None.
        chosen: [tokens, k].
        spec: the rule.
    """
    result = np.zeros(choice.shape[0], bool)
    everything = np.ones(spec.num_choices, bool)
    for token, ids in enumerate(chosen):
        eligible = everything
        if groups is not None:
            of_groups = groups[token]
            kept = best(of_groups.value, spec.groups_kept)
            eligible = members(kept, spec)
            rest = np.setdiff1d(np.arange(spec.num_groups), kept)
            known = np.where(of_groups.bound == 0, of_groups.value, np.nan)
            result[token] |= _unsure(of_groups, known, kept, rest)
        others = np.setdiff1d(np.flatnonzero(eligible), ids)
        result[token] |= _unsure(choice[token], same[token], ids, others)
    return result


def _unsure(c: Value, same: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> bool:
    value, bound = _ranked(c)
    low, high = (value - bound)[inside, None], (value + bound)[None, outside]
    tie = same[inside, None] == same[None, outside]
    return bool(np.any((low <= high) & ~tie))


def acceptable_set(choice: Value, groups: Value | None, ids: np.ndarray, spec: RouterSpec) -> bool:
    """Whether one token's set of experts is acceptable; its order does not count.

    Args:
        choice: [choices].
        groups: scores of the groups, or None.
        ids: [k].
        spec: the rule.
    """
    ids = np.unique(ids)
    if len(ids) != spec.k or ids[0] < 0 or ids[-1] >= spec.num_choices:
        return False
    everything = np.arange(spec.num_choices)
    if groups is None:
        return _beats(choice, ids, np.setdiff1d(everything, ids))
    group = everything // (spec.num_choices // spec.num_groups)
    touched = np.unique(group[ids])
    free = np.setdiff1d(np.arange(spec.num_groups), touched)
    if len(touched) > spec.groups_kept:
        return False
    for more in itertools.combinations(free, spec.groups_kept - len(touched)):
        kept = np.union1d(touched, np.array(more, np.int64))
        others = np.setdiff1d(np.flatnonzero(members(kept, spec)), ids)
        dropped = np.setdiff1d(np.arange(spec.num_groups), kept)
        if _beats(groups, kept, dropped) and _beats(choice, ids, others):
            return True
    return False


def _beats(c: Value, inside: np.ndarray, outside: np.ndarray) -> bool:
    value, bound = _ranked(c)
    low = np.min((value + bound)[inside], initial=np.inf)
    return bool(low >= np.max((value - bound)[outside], initial=-np.inf))


def _ranked(c: Value) -> tuple[np.ndarray, np.ndarray]:
    """Value and bound for comparing: NaN ranks as inf, and infinities are known."""
    value = np.where(np.isnan(c.value), np.inf, c.value)
    return value, np.where(np.isinf(value), 0.0, np.nan_to_num(c.bound, nan=np.inf, posinf=np.inf))
