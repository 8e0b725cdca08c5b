r"""Routing from a kernel's own logits."""

from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._ambiguity import acceptable_set
from moe_ref.oracle._decide import RouteResult, decide, given_ids, live_rows, with_padding
from moe_ref.oracle._declared import routing_numerics
from moe_ref.oracle._formats import Formats, dtype_name
from moe_ref.oracle._params import floats
from moe_ref.oracle._value import given
from moe_ref.spec import Numerics, RouterSpec


@np.errstate(all="ignore")
def route(
    logits: Any,
    spec: RouterSpec,
    *,
    bias: Any = None,
    mask: Any = None,
    experts: Any = None,
    per_expert_scale: Any = None,
    dtype: str | None = None,
    numerics: Numerics | None = None,
) -> RouteResult:
    r"""Choose experts and weigh them, from given logits.

    $$s = \mathrm{score}(l), \quad ids = \mathrm{top}_k(s + b), \quad
      w = \mathrm{scale} \cdot \mathrm{renormalize}(s_{ids})$$

    Args:
        logits: [tokens, choices], taken as exact: the kernel's own.
        spec: the rule.
        bias: selection bias $b$, [choices].
        mask: [tokens] bool, True for a real token.
        experts: [tokens, k] ids to use in place of the choice; -1 for an empty slot.
        per_expert_scale: [choices], where the spec has one.
        dtype: name of the dtype of the hidden states, for `weight_dtype=None`.
        numerics: of the kernel; by default those of moe_ref's own router.

    Returns:
        Experts, weights and scores with bounds, and which tokens are ambiguous.

    Raises:
        ValueError: shapes or ids that contradict the spec.

    Special cases:
        Ties: choice descending, then index ascending. NaN ranks as +inf. A NaN logit makes the
        scores of its own token NaN (softmax) or its own score (the others).

    Complexity:
        Loops over tokens in Python: about 1e4 tokens a second.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle, spec

        s = spec.RouterSpec(num_experts=4, k=2, score="sigmoid", renormalize="sum")
        r = oracle.route(np.array([[0.0, 2.0, 1.0, -1.0]]), s)
        assert r.experts.tolist() == [[1, 2]] and not r.ambiguous[0]
        ```
    """
    formats = Formats(numerics or routing_numerics(spec, dtype_name(logits, "logits"), dtype))
    values = floats(logits)
    choices = spec.num_choices
    require(
        values.ndim == 2 and values.shape[1] == choices,
        "logits",
        f"of shape [tokens, {choices}]",
        f"shape {values.shape}",
    )
    require(
        bias is None or spec.selection_bias, "bias", "None with selection_bias=False", "an array"
    )
    require(
        (per_expert_scale is not None) == spec.per_expert_scale,
        "per_expert_scale",
        f"given exactly when spec.per_expert_scale (it is {spec.per_expert_scale})",
        per_expert_scale,
    )
    for name, vector in (("bias", bias), ("per_expert_scale", per_expert_scale)):
        shape = (choices,) if vector is None else np.asarray(vector).shape
        require(shape == (choices,), name, f"of shape [{choices}]", f"shape {shape}")
    require(
        experts is not None or not spec.hash_vocab,
        "experts",
        f"given with hash_vocab={spec.hash_vocab}: the table's rows for the tokens",
        None,
    )
    live = live_rows(mask, values.shape[0])
    decided = decide(
        given(values, formats.logits)[live],
        spec,
        formats,
        bias=None if bias is None else floats(bias),
        experts=None if experts is None else given_ids(experts, values.shape[0], spec)[live],
        per_expert_scale=None
        if per_expert_scale is None
        else given(floats(per_expert_scale), formats.inputs),
    )
    return with_padding(decided, live, values.shape[0])


def acceptable(result: RouteResult, experts: Any) -> np.ndarray:
    """Whether each token's set of experts is one that correct rounding may choose.

    Args:
        result: of `route` or `layer`.
        experts: [tokens, k] ids of the kernel, in any order.

    Returns:
        [tokens] bool. Where the experts were given, and for padding, only the same set will do.

    Raises:
        ValueError: another shape.
    """
    ids = np.asarray(experts)
    shape = result.experts.shape
    require(ids.shape == shape, "experts", f"of shape {shape}", f"shape {ids.shape}")
    chosen, fine = result.choice, np.zeros(shape[0], bool)
    for token, mine in enumerate(ids):
        wanted = result.experts[token]
        fine[token] = np.array_equal(np.sort(mine), np.sort(wanted))
        if not fine[token] and chosen is not None and result.spec and wanted[0] >= 0:
            groups = None if result.groups is None else result.groups[token]
            fine[token] = acceptable_set(chosen[token], groups, mine, result.spec)
    return fine
