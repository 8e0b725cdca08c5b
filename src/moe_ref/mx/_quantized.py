"""What quantisation gives: codes, scales, and what they mean."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, UInt8


class Quantized(eqx.Module):
    """An array in blocks that share a scale; `vmap` over leading axes keeps it valid.

    Attributes:
        elements: one code a value, in the low bits of a byte, of the shape that was quantised.
        scales: one for each block: the size of a blocked axis is the number of its blocks. Bytes
            of powers of two, codes of E4M3 for "nvfp4", or float32 numbers for FP8 that is not MX.
        format: name of the format.
        axis: the blocked axes, counted from the last, which is -1.
        block: length of a block along each of `axis`.
        tensor_scale: what all values are multiplied by, for "nvfp4"; with axes after `vmap`, the
            leading ones of `elements`.
    """

    elements: UInt8[Array, "..."]
    scales: UInt8[Array, "..."] | Float32[Array, "..."]
    format: str = eqx.field(static=True)
    axis: tuple[int, ...] = eqx.field(static=True)
    block: tuple[int, ...] = eqx.field(static=True)
    tensor_scale: Float32[Array, "..."] | None = None

    def dequantize(self, dtype: Any = jnp.float32) -> Float[Array, "..."]:
        """The values; see `moe_ref.mx.dequantize`."""
        from moe_ref.mx._dequantize import dequantize

        return dequantize(self, dtype)
