"""What the checks of `quantize` compare: bytes with the oracle's, values with their bytes."""

from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._judge import all_of, equal, failed
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.operations._quantize import block_axis, block_length
from moe_ref.spec import MXSpec

NAN_SCALE = 0xFF
# The magnitude codes from which on a format has NaN.
_NAN_FROM = {"mxfp8_e4m3": 0x7F, "mxfp8_e5m2": 0x7D}
_SIGN = {"mxfp6_e3m2": 0x20, "mxfp6_e2m3": 0x20, "mxfp4_e2m1": 0x08}


def settings(case: Case) -> MXSpec:
    """Format, rule and policy a case is judged by."""
    return MXSpec() if case.mx is None else case.mx


def truth(case: Case) -> oracle.QuantizeResult:
    """The bytes of the oracle."""
    mx = settings(case)
    return oracle.quantize(
        case.arrays["x"],
        mx.format,
        axis=block_axis(case),
        rule=mx.rule,
        nonfinite=mx.nonfinite,
        block=block_length(case),
    )


def meaning(case: Case, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Codes as they are judged: all NaN are one, and so is all that a scale of 0xFF makes NaN.

    Returns:
        One number a value: a code, or 256 for NaN.
    """
    first = _NAN_FROM.get(settings(case).format)
    found = codes.astype(np.int64)
    if first is not None:
        found = np.where((found & 0x7F) >= first, 256, found)
    return np.where(along(case, scales, codes.shape) == NAN_SCALE, 256, found)


def along(case: Case, scales: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The scale byte of each value of an array of this shape."""
    axis = block_axis(case)
    spread = np.repeat(scales, block_length(case), axis=axis)
    return np.take(spread, np.arange(shape[axis]), axis=axis)


def negated(case: Case, codes: np.ndarray) -> np.ndarray:
    """The codes of the negative numbers."""
    if settings(case).format == "mxint8":
        return -codes.astype(np.int64) % 256
    return codes.astype(np.int64) ^ _SIGN.get(settings(case).format, 0x80)


def decoded(case: Case, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """What codes and scales stand for, in float64."""
    return oracle.dequantize(
        codes.astype(np.uint8),
        scales.astype(np.uint8),
        settings(case).format,
        axis=block_axis(case),
        block=block_length(case),
    )


def judge_bytes(case: Case, outputs: Outputs) -> Judgement:
    """`judge_zeros`, but the scale of a block of zeros may be any number."""
    return _judged(case, outputs, all_zero(case) & (outputs["scales"] != NAN_SCALE))


def judge_zeros(case: Case, outputs: Outputs) -> Judgement:
    """Scales and codes, equal to the oracle's, and what the kernel reads them as, if it says so."""
    return _judged(case, outputs, np.array(False))


def _judged(case: Case, outputs: Outputs, free: np.ndarray) -> Judgement:
    right = truth(case)
    expected = np.where(free, outputs["scales"], right.scales)
    scales = same(case, "scales", outputs["scales"], expected)
    if scales.status == "fail":
        return scales  # the codes of another scale are others
    mine = meaning(case, outputs["codes"], outputs["scales"])
    codes = same(case, "codes", mine, meaning(case, right.elements, right.scales))
    return codes if codes.status == "fail" else judge_readings(case, outputs)


def judge_readings(case: Case, outputs: Outputs) -> Judgement:
    """`judge_values` where a kernel gives them."""
    given = "values" in outputs
    return judge_values(case, outputs) if given else Judgement(status="pass")


def all_zero(case: Case) -> np.ndarray:
    """Which blocks are zero, of the shape of the scales."""
    x, axis = case.arrays["x"], block_axis(case)
    starts = np.arange(0, x.shape[axis], block_length(case))
    return ~np.logical_or.reduceat(x != 0, starts, axis=axis)


def same(case: Case, name: str, actual: np.ndarray, expected: np.ndarray) -> Judgement:
    """Whole numbers, equal; a failure names the value, the largest of its block, and both bytes."""
    wrong = np.argwhere(actual != expected)
    if len(wrong) == 0:
        return Judgement(status="pass")
    place = tuple(int(i) for i in wrong[0])
    got, want = _byte(actual[place]), _byte(expected[place])
    about = f"{name}{list(place)}, {_values(case, name, place)}: got {got}, expected {want}"
    mx = settings(case)
    count = f"{len(wrong)} of {actual.size} differ"
    return failed(f"{about} ({mx.format}, {mx.rule}, {mx.nonfinite}); {count}")


def _byte(code: Any) -> str:
    return "NaN" if code == 256 else f"0x{int(code):02x}"


def _values(case: Case, name: str, place: tuple[int, ...]) -> str:
    """The value a code is of, and the largest magnitude of the block, each exactly."""
    x, axis, block = case.arrays["x"].astype(np.float32), block_axis(case), block_length(case)
    at = list(place)
    first = at[axis] * block if name == "scales" else at[axis] // block * block
    whole: list[Any] = list(at)
    whole[axis] = slice(first, first + block)
    amax = _exact(np.abs(x[tuple(whole)]).max())
    return f"amax {amax}" if name == "scales" else f"of {_exact(x[place])} in a block of {amax}"


def _exact(value: Any) -> str:
    return f"{value:.9g} (0x{np.float32(value).view(np.uint32):08x})"


def judge_elements(case: Case, outputs: Outputs) -> Judgement:
    """Bytes, and NaN elements wherever the scale is NaN."""
    first = _NAN_FROM.get(settings(case).format)
    codes, scales = outputs["codes"], outputs["scales"]
    found = judge_bytes(case, outputs)
    if found.status == "fail" or first is None:
        return found
    poisoned = along(case, scales, codes.shape) == NAN_SCALE
    wrong = np.argwhere(poisoned & ((codes & 0x7F) < first))
    if len(wrong) == 0:
        return found
    place = tuple(int(i) for i in wrong[0])
    return failed(f"codes{list(place)}: got {_byte(codes[place])} under scale 0xff, expected NaN")


def judge_values(case: Case, outputs: Outputs) -> Judgement:
    """What the kernel reads its own bytes as, rounded once to the dtype of its values."""
    values = outputs["values"]
    exact = decoded(case, outputs["codes"], outputs["scales"])
    with np.errstate(over="ignore"):
        right = exact.astype(values.dtype)
    return all_of(
        equal(values, right, where=lambda i: f"values{list(i)}"),
        equal(
            np.signbit(values) & (values == 0),
            np.signbit(right) & (right == 0),
            where=lambda i: f"the sign of zero of values{list(i)}",
        ),
    )


def judge_kept(case: Case, outputs: Outputs) -> Judgement:
    """Values that codes and scales can write exactly, written exactly."""
    found = decoded(case, outputs["codes"], outputs["scales"])
    x = case.arrays["x"].astype(np.float64)
    return equal(found, x, where=lambda i: f"the value of codes{list(i)}")
