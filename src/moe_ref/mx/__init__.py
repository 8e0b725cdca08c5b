"""MX formats and others: blocks of narrow numbers that share a scale, exact to the bit.

| file | what it holds |
|---|---|
| `_format.py` | the element formats and their constants |
| `_bits.py` | float patterns to codes and back, in integers |
| `_scale.py` | the scale rules: powers of two |
| `_float32.py` | products and quotients of float32, in integers |
| `_scaled.py` | NVFP4 and FP8, whose scales are numbers |
| `_quantized.py` | the result: codes, scales and what they mean |
| `_blocks.py` | arrays cut into blocks along named axes |
| `_quantize.py`, `_dequantize.py` | the public operation and its inverse |
| `_triton.py` | FP8 on NVIDIA GPUs: both, in one pass each |
| `_layout.py` | scales as the hardware reads them, groups of whole blocks |
| `_grouped.py` | the grouped matmul on MX operands, and its gradient |
"""

from moe_ref.mx._dequantize import dequantize as dequantize
from moe_ref.mx._format import formats as formats
from moe_ref.mx._grouped import grouped_matmul_mx as grouped_matmul_mx
from moe_ref.mx._layout import aligned_length as aligned_length
from moe_ref.mx._layout import aligned_rows as aligned_rows
from moe_ref.mx._layout import swizzle_scales as swizzle_scales
from moe_ref.mx._layout import unswizzle_scales as unswizzle_scales
from moe_ref.mx._quantize import quantize as quantize
from moe_ref.mx._quantized import Quantized as Quantized
from moe_ref.mx._scale import rules as rules
