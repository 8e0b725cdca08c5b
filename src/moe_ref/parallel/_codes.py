"""Rows as they cross in an MX format: a code for each column, a scale for each block of 32."""

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from moe_ref.mx import Quantized, quantize
from moe_ref.spec import MXSpec

_BLOCK = 32


def packed(wire: MXSpec, x: Float[Array, "tokens d"]) -> UInt8[Array, "tokens bytes"]:
    """Each row's codes, then its scales; a short last block is as if zeros followed."""
    q = quantize(
        x,
        wire.format,
        axis=-1,
        rule=wire.rule,
        nonfinite=wire.nonfinite,
        block=_BLOCK,
        tail="pad",
    )
    return jnp.concatenate([q.elements, q.scales], axis=1)


def unpacked(
    wire: MXSpec, codes: UInt8[Array, "rows bytes"], width: int
) -> Float[Array, "rows {width}"]:
    """The values of rows of `width` columns, in float32."""
    q = Quantized(codes[:, :width], codes[:, width:], wire.format, (-1,), (_BLOCK,))
    return q.dequantize()
