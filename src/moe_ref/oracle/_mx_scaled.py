r"""NVFP4 and block-scaled FP8 in NumPy float64, where products of float32 numbers are exact.

A float32 operation is the same one in float64, rounded to float32. That equals rounding once:
products are exact in float64, and quotients of 24 bits are never closer than $2^{-49}$ to a middle
that they do not hit.
"""

import numpy as np

from moe_ref.oracle._mx_formats import ELEMENTS, Elements, numbers

LARGEST = (2 - 2.0**-23) * 2.0**127
NVFP4_RULES = ("te", "te_unfolded", "torchao")
FP8_RULES = ("divide", "deepseek_v3", "deepgemm", "te")


def float32(values: np.ndarray | float) -> np.ndarray:
    """The float32 numbers nearest to non-negative ones, ties to even, as float64."""
    values = np.asarray(values, np.float64)
    exponent = np.maximum(np.frexp(values)[1] - 1, -126) - 23
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent)
    # What is not finite has no exponent.
    rounded = np.where(np.isfinite(values), rounded, values)
    return np.where(rounded > LARGEST, np.inf, rounded)


def product(a: np.ndarray | float, b: np.ndarray | float) -> np.ndarray:
    """The float32 product."""
    with np.errstate(invalid="ignore"):
        return float32(np.multiply(a, b, dtype=np.float64))


def quotient(a: np.ndarray | float, b: np.ndarray | float) -> np.ndarray:
    """The float32 quotient."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float32(np.divide(a, b, dtype=np.float64))


def nearest(magnitudes: np.ndarray, form: Elements) -> np.ndarray:
    """Codes of the numbers nearest to magnitudes: the even one of two, the largest beyond it."""
    table = form.units * 2.0**form.unit
    middles = (table[1:] + table[:-1]) / 2
    code = np.searchsorted(middles, magnitudes, side="left")
    tie = np.append(middles, np.nan)[code] == magnitudes
    code = np.where(tie & (code % 2 == 1), code + 1, code)
    instead = len(table) - 1 if form.nan is None else form.nan
    return np.where(np.isnan(magnitudes), instead, code)


def nvfp4(values: np.ndarray, rule: str, nonfinite: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Codes, scale codes and the tensor's scale of blocks that fill the last axis."""
    magnitudes, block, bad = _largest(values, nonfinite)
    counted = np.where(bad, 0.0, block) if nonfinite == "poison" else block
    whole = float(counted.max(initial=0.0))
    e4m3, e2m1 = ELEMENTS["mxfp8_e4m3"], ELEMENTS["mxfp4_e2m1"]
    nan = 0x7F
    if rule == "torchao":
        tensor = 1.0 if np.isinf(whole) else float(quotient(whole, 2688.0))
        ratio = quotient(quotient(block, 6.0), tensor)
        codes = nearest(np.maximum(ratio, 2.0**-6), e4m3)
        scaled = quotient(magnitudes, product(numbers(e4m3)[codes], tensor)[..., None])
    else:
        inverse = 1.0
        if 0 < whole < np.inf:
            inverse = min(float(quotient(2688.0, whole)), LARGEST)
        tensor = float(quotient(1.0, inverse))
        if rule == "te":
            ratio = product(block, product(inverse, quotient(1.0, 6.0)))
        else:
            ratio = product(quotient(block, 6.0), inverse)
        codes = nearest(ratio, e4m3)
        factor = np.minimum(quotient(1.0, product(numbers(e4m3)[codes], tensor)), LARGEST)
        scaled = product(magnitudes, factor[..., None])
    if nonfinite == "poison":
        codes = np.where(bad, nan, codes)
    elements = _signed(scaled, values, e2m1)
    return np.where(codes[..., None] == nan, 0, elements), codes, tensor


def fp8(
    values: np.ndarray, format: str, rule: str, nonfinite: str
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and float32 scales of blocks that fill the last axis."""
    form = ELEMENTS["mx" + format]
    top = float(form.largest)
    magnitudes, block, bad = _largest(values, nonfinite)
    if rule == "te":
        inverse = np.where(block == 0, 1.0, np.minimum(quotient(top, block), LARGEST))
        scales = quotient(1.0, inverse)
        scaled = product(magnitudes, inverse[..., None])
    elif rule == "deepgemm":
        scales = quotient(np.maximum(block, float32(1e-4)), top)
        scaled = product(magnitudes, quotient(1.0, scales)[..., None])
    else:
        scales = quotient(block, top)
        scaled = quotient(magnitudes, scales[..., None])
        if rule == "divide":
            scaled = np.where(magnitudes == 0, 0.0, scaled)
    scaled = np.where(bad[..., None], magnitudes, scaled)
    elements = _signed(scaled, values, form)
    if nonfinite == "te":
        return elements, np.where(bad, 1.0, scales)
    return np.where(bad[..., None], form.nan or 0, elements), np.where(bad, np.nan, scales)


def _largest(values: np.ndarray, nonfinite: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Magnitudes, the largest of each block, and which blocks are not finite."""
    magnitudes = np.abs(values)
    other = 0.0 if nonfinite == "te" else np.inf
    block = np.where(np.isnan(magnitudes), other, magnitudes).max(-1, initial=0.0)
    return magnitudes, block, np.isinf(block)


def _signed(scaled: np.ndarray, values: np.ndarray, form: Elements) -> np.ndarray:
    """Codes of magnitudes, with the signs of values; NaN has none."""
    negative = np.signbit(values) & ~np.isnan(scaled)
    return nearest(scaled, form) + np.where(negative, form.sign, 0)
