"""Checks of `quantize`: scales and codes of every magnitude, and what codes are read as."""

from typing import Any

from moe_ref.conformance._check import Check
from moe_ref.conformance.suite import _quantize_cases as case
from moe_ref.conformance.suite._quantize_elsewhere import (
    in_matrices,
    in_other_axes,
    short_zeros,
)
from moe_ref.conformance.suite._quantize_judge import (
    judge_bytes,
    judge_elements,
    judge_values,
    judge_zeros,
)
from moe_ref.conformance.suite._related import chained

FORMULA = "(codes, scales) = oracle, to the bit"


def check(number: int, statement: str, cases: Any, judge: Any = judge_bytes, **options) -> Check:
    """A check of bytes."""
    fields: dict[str, Any] = {"kind": "exact", "formula": FORMULA} | options
    return Check(
        id=f"QNT-{number:02d}",
        op="quantize",
        statement=statement,
        cases=cases,
        judge=judge,
        **fields,
    )


CHECKS = (
    check(1, "Gaussian values get the scales and codes of their rule and format.", case.ordinary),
    check(
        2,
        "So do blocks of every magnitude, wide in themselves: nothing is rounded twice.",
        case.wide,
    ),
    check(3, "The next scale is taken where the rule says, to the last bit of amax.", case.edges),
    check(
        4,
        "Elements are rounded to nearest, ties to even, between all numbers of the format.",
        case.ties,
        formula="codes = rn(x / 2^(b-127)) at and beside every middle",
    ),
    check(
        5,
        "What is above the largest number becomes the largest number.",
        case.saturating,
        formula="|p| <= p_max; never NaN or Inf",
    ),
    check(6, "Subnormal numbers of the format are used, and what is below them is 0.", case.deep),
    check(
        7,
        "A block of zeros has the scale 0x00, and leaves the others alone.",
        chained(case.zeros, in_matrices(case.zeros)),
        judge_zeros,
        formula="b = 0, codes = 0 where amax = 0",
    ),
    check(8, "Zeros keep their sign, and so does what becomes zero.", case.signed_zeros),
    check(
        9,
        "Subnormal inputs count, and scale byte 0 is 2^-127.",
        case.tiny,
        formula="b = 0: codes = rn(x / 2^-127)",
    ),
    check(
        10,
        "The rule holds between the smallest scales, where the float32 quotient is subnormal.",
        case.first_scales,
        formula="E4M3 under rceil: amax 0x04600001 has b = 0",
    ),
    check(11, "Blocks near the end of the dtype get their scales and codes.", case.huge),
    check(
        12,
        "The largest numbers of the dtype get what rule and policy say.",
        case.largest_finite,
        formula="`even` may round amax to Inf: 0xFF under poison",
    ),
    check(
        13,
        "A NaN does what the policy says to its block, and nothing to others.",
        case.nans,
        formula="poison: b = 0xFF; te: NaN stays alone",
    ),
    check(
        14,
        "So does an Inf.",
        case.infinities,
        formula="poison: b = 0xFF; te: b = 0xFE and the largest number",
    ),
    check(15, "So do both in one block, in either order.", case.nans_and_infinities),
    check(
        16,
        "Elements under the scale 0xFF are NaN themselves, where the format has one.",
        chained(case.nans, in_matrices(case.nans)),
        judge_elements,
        needs="nan_elements",
        formula="b = 0xFF: codes = NaN",
    ),
    check(
        17,
        "Codes and scales are read as what they stand for, exactly.",
        case.wide,
        judge_values,
        wants=("values",),
        formula="values = 2^(b-127) p, rounded once to their dtype",
    ),
    check(
        18,
        "So are those of blocks whose scale is 2^-127, and subnormal values.",
        case.tiny,
        judge_values,
        wants=("values",),
        formula="b = 0: values = 2^-127 p",
    ),
    check(
        19,
        "A block of scale 0xFF is read as NaN.",
        case.nans,
        judge_values,
        wants=("values",),
        formula="b = 0xFF: values = NaN",
    ),
    check(
        20,
        "A block of zeros has the scale 0x00 where it is short, and in 1, 3 and 4 axes.",
        chained(short_zeros, in_other_axes(case.zeros)),
        judge_zeros,
        may_refuse=True,
        formula="b = 0, codes = 0 where amax = 0",
    ),
)
