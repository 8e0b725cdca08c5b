"""The numerics of moe_ref's own executions."""

import dataclasses

from moe_ref._errors import require_choice
from moe_ref.oracle._formats import FORMATS
from moe_ref.spec import LayerSpec, Numerics, RouterSpec


def numerics_for(spec: LayerSpec | RouterSpec, dtype: str) -> Numerics:
    """What moe_ref's own executions do with inputs of `dtype` under a spec.

    `Numerics.of(dtype)`, with the router's stages in the dtypes that the spec names. These are
    lower bounds: float64 inputs are never narrowed.

    Args:
        spec: of the layer or of its router.
        dtype: name of the dtype of x and of the parameters.

    Returns:
        The `Numerics`.

    Raises:
        ValueError: an unknown dtype.

    Example:
        ```python
        from moe_ref import oracle, spec

        assert oracle.numerics_for(spec.preset("deepseek-v3"), "bfloat16").logits == "float32"
        ```
    """
    require_choice(dtype, "dtype", FORMATS)
    router = spec.router if isinstance(spec, LayerSpec) else spec
    base = Numerics.of(dtype)  # pyright: ignore[reportArgumentType]

    def at_least(current, named):
        return current if named is None or current == "float64" else named

    projection = at_least(dtype, router.projection_dtype)
    return dataclasses.replace(
        base,
        projection=projection,
        logits=projection,
        score=at_least(projection, router.score_dtype),
        weights=at_least(dtype, router.weight_dtype),
    )


def routing_numerics(spec: RouterSpec, logits_dtype: str, dtype: str | None) -> Numerics:
    """The same for routing from given logits.

    Args:
        spec: the router.
        logits_dtype: name of the dtype of the logits.
        dtype: name of the dtype of the hidden states, for `weight_dtype=None`; None: of the logits.

    Returns:
        The `Numerics`.
    """
    own = numerics_for(spec, dtype or logits_dtype)
    score = spec.score_dtype or logits_dtype
    return dataclasses.replace(
        own, logits=logits_dtype, score="float64" if logits_dtype == "float64" else score
    )
