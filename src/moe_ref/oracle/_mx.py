"""Quantisation to blocks that share a scale, and back; MX formats in NumPy integers."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require, require_choice
from moe_ref.oracle import _mx_scaled
from moe_ref.oracle._mx_blocks import Axis, counts, cut, joined
from moe_ref.oracle._mx_formats import ELEMENTS, RULES, Elements, numbers, overflow, thresholds

_INFINITY = 0x7F800000


@dataclasses.dataclass(frozen=True)
class QuantizeResult:
    """Codes and scales.

    Args:
        elements: one code a value, uint8.
        scales: one for each block, uint8; float32 for "fp8_e4m3" and "fp8_e5m2".
        tensor_scale: what all values are multiplied by, for "nvfp4".
    """

    elements: np.ndarray
    scales: np.ndarray
    tensor_scale: np.float32 | None = None


_USUAL = {"nvfp4": 16, "fp8_e4m3": 128, "fp8_e5m2": 128}
_FORMATS = (*ELEMENTS, *_USUAL)


def quantize(
    x: Any,
    format: str,
    *,
    axis: Axis,
    rule: str | None = None,
    nonfinite: str = "poison",
    block: Axis | None = None,
) -> QuantizeResult:
    r"""Codes and scales of blocks along one axis or several, short last blocks allowed.

    In an MX format an element is the nearest number in the table of all numbers of the format, and
    a scale byte how many thresholds of the rule the largest magnitude passes; both compare whole
    numbers. In the others every step of the rule is a float64 one, rounded to float32.

    Args:
        x: any shape; float32, float16 or bfloat16.
        format: "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_e2m1", "mxint8",
            "nvfp4", "fp8_e4m3" or "fp8_e5m2".
        axis: along which blocks lie.
        rule: one of `moe_ref.mx.rules(format)`; if None "rceil", "te" or "divide".
        nonfinite: "poison" or "te"; see `moe_ref.mx.quantize`.
        block: values that share a scale, along each axis; if None 32, 16 or 128.

    Returns:
        Elements of the shape of `x`; along each of `axis`, one scale for each block.

    Raises:
        ValueError: a name or an axis that does not exist, or another dtype.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle

        q = oracle.quantize(np.array([449.0, 17.0], np.float32), "mxfp8_e4m3", axis=0)
        assert q.scales.tolist() == [128] and q.elements.tolist() == [0x76, 0x50]
        ```
    """
    require_choice(format, "format", _FORMATS)
    known = RULES
    if format not in ELEMENTS:
        known = _mx_scaled.NVFP4_RULES if format == "nvfp4" else _mx_scaled.FP8_RULES
    rule = rule or ("rceil" if format in ELEMENTS else known[0])
    require_choice(rule, "rule", known)
    require_choice(nonfinite, "nonfinite", ("poison", "te"))
    patterns = _patterns(x)
    block = _USUAL.get(format, 32) if block is None else block
    blocks = cut(patterns, axis, block)
    tensor_scale = None
    if format in ELEMENTS:
        elements, scales = _block(blocks, format, rule, nonfinite)
    elif format == "nvfp4":
        elements, scales, whole = _mx_scaled.nvfp4(_float64(blocks), rule, nonfinite)
        tensor_scale = _float32(np.array([whole]))[0]
    else:
        elements, scales = _mx_scaled.fp8(_float64(blocks), format, rule, nonfinite)
    stored = _float32(scales) if format.startswith("fp8") else scales.astype(np.uint8)
    codes = joined(elements, patterns.shape, axis, block).astype(np.uint8)
    return QuantizeResult(codes, stored, tensor_scale)


def _block(patterns, format: str, rule: str, nonfinite: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scale bytes of blocks that fill the last axis."""
    form = ELEMENTS[format]
    magnitudes = patterns & 0x7FFFFFFF
    nan = magnitudes > _INFINITY
    if nonfinite == "te":
        amax = np.where(nan, 0, magnitudes).max(-1)
        byte = np.searchsorted(thresholds(format, rule), amax, side="right")
        byte = np.where(amax == _INFINITY, 254, np.minimum(byte, 254))
        return _codes(patterns, byte[..., None], form), byte
    amax = magnitudes.max(-1)
    byte = np.minimum(np.searchsorted(thresholds(format, rule), amax, side="right"), 254)
    bad = amax >= (overflow(format) if rule == "even" else _INFINITY)
    codes = _codes(patterns, byte[..., None], form)
    return np.where(bad[..., None], form.nan or 0, codes), np.where(bad, 0xFF, byte)


def _codes(patterns: np.ndarray, byte: np.ndarray, form: Elements) -> np.ndarray:
    """The code of the number nearest to each value over its scale; the even one of two."""
    magnitudes = patterns & 0x7FFFFFFF
    field = magnitudes >> 23
    significand = np.where(field == 0, magnitudes, magnitudes & 0x7FFFFF | 0x800000)
    # value / scale = significand 2^power, in units of half the smallest number of the format
    power = np.maximum(field, 1) - 150 + 127 - byte - form.unit + 1
    left, right = np.clip(power, 0, 37), np.clip(-power, 0, 40)
    whole = (significand << left) >> right
    rest = (whole << right) != (significand << left)
    middles = form.units[:-1] + form.units[1:]
    # An odd key lies strictly between two whole numbers.
    key = 2 * whole + rest
    code = np.searchsorted(2 * middles, key, side="left")
    tie = 2 * np.append(middles, -1)[code] == key
    code = np.where(tie & (code % 2 == 1), code + 1, code)
    code = np.where(magnitudes == _INFINITY, len(form.units) - 1, code)
    negative = patterns >> 31 == 1
    if form.sign:
        code = np.where(negative, code + form.sign, code)
    else:
        code = np.where(negative, -code % 256, code)
    instead = len(form.units) - 1 if form.nan is None else form.nan
    return np.where(magnitudes > _INFINITY, instead, code)


def dequantize(
    elements: Any,
    scales: Any,
    format: str,
    *,
    axis: Axis,
    block: Axis | None = None,
    tensor_scale: Any = None,
) -> np.ndarray:
    r"""The values $2^{b-127} p_i$, $t s p_i$ or $s p_i$ in float64, where each of them is exact.

    Args:
        elements: codes, uint8.
        scales: along `axis` one for each block: bytes, 0xFF making the block NaN; codes of E4M3 for
            "nvfp4"; float32 numbers for "fp8_e4m3" and "fp8_e5m2".
        format: as for `quantize`.
        axis: along which blocks lie.
        block: values that share a scale, as for `quantize`.
        tensor_scale: a float32 number, for "nvfp4" alone.

    Returns:
        Float64 of the shape of `elements`.

    Raises:
        ValueError: a format that does not exist, or scales of another shape.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle

        codes, scales = np.array([0x7E], np.uint8), np.array([0], np.uint8)
        assert oracle.dequantize(codes, scales, "mxfp8_e4m3", axis=0)[0] == 448 * 2.0**-127
        ```
    """
    require_choice(format, "format", _FORMATS)
    codes, given = np.asarray(elements), np.asarray(scales)
    block = _USUAL.get(format, 32) if block is None else block
    shape = counts(codes.shape, axis, block)
    require(given.shape == shape, "scales", f"of shape {shape}", given.shape)
    each = cut(codes.astype(np.int64), axis, block)
    if format in ELEMENTS:
        byte = given.astype(np.int64)
        scale = np.where(byte == 0xFF, np.nan, np.exp2((byte - 127).astype(np.float64)))
        table = numbers(ELEMENTS[format])
    elif format == "nvfp4":
        scale = numbers(ELEMENTS["mxfp8_e4m3"])[given] * float(tensor_scale)
        table = numbers(ELEMENTS["mxfp4_e2m1"])
    else:
        scale, table = _float64(_patterns(given)), numbers(ELEMENTS["mx" + format])
    return joined(table[each % len(table)] * scale[..., None], codes.shape, axis, block)


def _patterns(x: Any) -> np.ndarray:
    """The float32 pattern of each value, in int64."""
    array = np.asarray(x)
    require_choice(array.dtype.name, "x.dtype", ("bfloat16", "float16", "float32"))
    if array.dtype.name == "bfloat16":
        return array.view(np.uint16).astype(np.int64) << 16
    return array.astype(np.float32).view(np.uint32).astype(np.int64)


def _float64(patterns: np.ndarray) -> np.ndarray:
    """The float32 numbers of patterns, taken apart by integers: processors may flush subnormals."""
    field, fraction = patterns >> 23 & 0xFF, patterns & 0x7FFFFF
    significand = np.where(field == 0, fraction, fraction | 0x800000)
    size = np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - 150)
    size = np.where(field == 0xFF, np.where(fraction == 0, np.inf, np.nan), size)
    return np.where(patterns >> 31 == 1, -size, size)


def _float32(values: np.ndarray) -> np.ndarray:
    """Non-negative float32 numbers that are given as float64."""
    exponent = np.maximum(np.frexp(values)[1] - 1, -126)
    finite = np.where(np.isfinite(values), values, 0.0)
    steps = np.ldexp(finite, 23 - np.where(np.isfinite(values), exponent, 0)).astype(np.int64)
    # Patterns count float32 numbers, through powers of two and subnormals alike.
    pattern = steps + np.where(finite == 0, 0, (exponent + 126).astype(np.int64) << 23)
    pattern = np.where(np.isnan(values), 0x7FC00000, pattern)
    return np.where(np.isinf(values), _INFINITY, pattern).astype(np.uint32).view(np.float32)
