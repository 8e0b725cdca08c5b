"""Quantisation to MX blocks in NumPy integers, and back."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require, require_choice
from moe_ref.oracle._mx_formats import ELEMENTS, RULES, Elements, overflow, thresholds

_INFINITY = 0x7F800000


@dataclasses.dataclass(frozen=True)
class QuantizeResult:
    """Codes and scales.

    Args:
        elements: one code a value, uint8.
        scales: one for each block, uint8.
    """

    elements: np.ndarray
    scales: np.ndarray


def quantize(
    x: Any,
    format: str,
    *,
    axis: int,
    rule: str = "rceil",
    nonfinite: str = "poison",
    block: int = 32,
) -> QuantizeResult:
    r"""Codes and scale bytes of blocks along one axis, a short last block allowed.

    An element is the nearest number in the table of all numbers of the format, and a scale byte
    how many thresholds of the rule the largest magnitude passes; both compare whole numbers.

    Args:
        x: any shape; float32, float16 or bfloat16.
        format: "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_e2m1" or "mxint8".
        axis: along which blocks lie.
        rule: "floor", "rceil", "rceil_real", "ceil" or "even"; see `moe_ref.mx.quantize`.
        nonfinite: "poison" or "te"; see there too.
        block: values that share a scale.

    Returns:
        Elements of the shape of `x`; along `axis`, one scale for each block.

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
    require_choice(format, "format", ELEMENTS)
    require_choice(rule, "rule", RULES)
    require_choice(nonfinite, "nonfinite", ("poison", "te"))
    patterns = _patterns(x)
    require(-patterns.ndim <= axis < patterns.ndim, "axis", "an axis of x", axis)
    moved = np.moveaxis(patterns, axis, -1)
    elements = np.empty(moved.shape, np.uint8)
    scales = np.empty((*moved.shape[:-1], -(-moved.shape[-1] // block)), np.uint8)
    for i in range(scales.shape[-1]):
        one = slice(i * block, (i + 1) * block)
        elements[..., one], scales[..., i] = _block(moved[..., one], format, rule, nonfinite)
    return QuantizeResult(np.moveaxis(elements, -1, axis), np.moveaxis(scales, -1, axis))


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
    elements: Any, scales: Any, format: str, *, axis: int, block: int = 32
) -> np.ndarray:
    r"""The values $2^{b-127} p_i$ in float64, where each of them is exact.

    Args:
        elements: codes, uint8.
        scales: along `axis` one byte for each block; 0xFF makes the block NaN.
        format: as for `quantize`.
        axis: along which blocks lie.
        block: values that share a scale.

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
    require_choice(format, "format", ELEMENTS)
    codes, given = np.asarray(elements), np.asarray(scales)
    length = codes.shape[axis]
    shape = list(codes.shape)
    shape[axis] = -(-length // block)
    require(given.shape == tuple(shape), "scales", f"of shape {tuple(shape)}", given.shape)
    byte = np.repeat(given, block, axis).take(np.arange(length), axis).astype(np.int64)
    numbers = _numbers(ELEMENTS[format])[codes.astype(np.int64) % len(_numbers(ELEMENTS[format]))]
    return np.where(byte == 0xFF, np.nan, numbers * np.exp2((byte - 127).astype(np.float64)))


def _numbers(form: Elements) -> np.ndarray:
    """The number of each code."""
    numbers = form.units * 2.0**form.unit
    if form.sign == 0:
        return np.concatenate([numbers, [-2.0], -numbers[:0:-1]])
    half = np.full(form.sign, np.nan)
    half[: len(numbers)] = numbers
    if form.infinity is not None:
        half[form.infinity] = np.inf
    return np.concatenate([half, -half])


def _patterns(x: Any) -> np.ndarray:
    """The float32 pattern of each value, in int64."""
    array = np.asarray(x)
    require_choice(array.dtype.name, "x.dtype", ("bfloat16", "float16", "float32"))
    if array.dtype.name == "bfloat16":
        return array.view(np.uint16).astype(np.int64) << 16
    return array.astype(np.float32).view(np.uint32).astype(np.int64)
