"""What quantisation gives: codes, scales, and what they mean."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8


class Quantized(eqx.Module):
    """An array in blocks that share a scale; `vmap` over leading axes keeps it valid.

    Attributes:
        elements: one code a value, in the low bits of a byte, of the shape that was quantised.
        scales: one for each block: the size of a blocked axis is the number of its blocks.
        format: name of the format.
        axis: the blocked axes, counted from the last, which is -1.
        block: length of a block along each of `axis`.
    """

    elements: UInt8[Array, "..."]
    scales: UInt8[Array, "..."]
    format: str = eqx.field(static=True)
    axis: tuple[int, ...] = eqx.field(static=True)
    block: tuple[int, ...] = eqx.field(static=True)

    def dequantize(self, dtype: Any = jnp.float32) -> Float[Array, "..."]:
        """The values; see `moe_ref.mx.dequantize`."""
        from moe_ref.mx._quantize import dequantize

        return dequantize(self, dtype)
