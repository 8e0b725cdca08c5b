"""The scale rules: from the largest magnitude of a block to its scale byte."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

from moe_ref._errors import require_choice
from moe_ref.mx._bits import split
from moe_ref.mx._format import FORMATS, Format, formats

_FRACTION = (1 << 23) - 1
RULES = ("floor", "rceil", "ceil", "even", "rceil_real")
NVFP4_RULES = ("te", "te_unfolded", "torchao")
FP8_RULES = ("divide", "deepseek_v3", "deepgemm", "te")


def rules(format: str = "mxfp8_e4m3") -> tuple[str, ...]:
    """Names of the scale rules of a format; all MX formats have the same.

    Args:
        format: a name from `formats()`.

    Raises:
        ValueError: a format that does not exist.

    Example:
        ```python
        from moe_ref import mx

        assert mx.rules() == ("floor", "rceil", "ceil", "even", "rceil_real")
        assert mx.rules("nvfp4") == ("te", "te_unfolded", "torchao")
        ```
    """
    require_choice(format, "format", formats())
    if format in FORMATS:
        return RULES
    return NVFP4_RULES if format == "nvfp4" else FP8_RULES


def usual_rule(format: str) -> str:
    """The rule where none is asked for."""
    return "rceil" if format in FORMATS else rules(format)[0]


class Scale(NamedTuple):
    """A scale byte in [0, 254], and whether the rule rounded the magnitude to infinity."""

    byte: Int32[Array, "..."]
    overflows: Bool[Array, "..."]


def scale(amax: UInt32[Array, "..."], rule: str, form: Format) -> Scale:
    """The scale byte of blocks whose largest magnitude is `amax`.

    Args:
        amax: finite float32 patterns without sign.
        rule: one of `RULES`.
        form: of the elements.
    """
    if form.emax:  # subnormal magnitudes have byte 0 whatever they are
        biased, fraction = (amax >> 23).astype(jnp.int32), (amax & _FRACTION).astype(jnp.int32)
    else:
        biased, significand = split(amax)
        fraction = (significand & _FRACTION).astype(jnp.int32)
    up = _rounds_up(rule, form, biased, fraction)
    byte = jnp.clip(biased - form.emax + up.astype(jnp.int32), 0, 254)
    return Scale(jnp.where(amax == 0, 0, byte), (rule == "even") & up & (biased == 254))


def _rounds_up(
    rule: str, form: Format, biased: Int32[Array, "..."], fraction: Int32[Array, "..."]
) -> Bool[Array, "..."]:
    """Whether the rule takes the power of two above the one that `floor` takes."""
    if rule == "ceil":
        return fraction > 0
    if rule == "even":
        return fraction + (1 << (22 - form.mantissa)) > _FRACTION
    if rule == "rceil_real":
        return fraction > form.top
    if rule == "rceil":
        # The float32 quotient amax / largest is a subnormal at this exponent, and the first
        # magnitude past the boundary rounds back down to 2^-127.
        return fraction > form.top + (biased == form.emax).astype(jnp.int32)
    return jnp.zeros_like(fraction, bool)
