"""The formats: how an element is written."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Format:
    """How one element is written: a sign, then a magnitude whose codes grow with the value.

    Args:
        mantissa: stored bits after the binary point.
        bias: of the exponent; the smallest normal number is 2^(1 - bias).
        emax: exponent of the largest finite number.
        largest: magnitude code of the largest finite number.
        bits: of a whole code, sign included.
        infinity: magnitude code of Inf; None if the format has none.
        nan: the smallest magnitude code that is a NaN; None if the format has none.
        complement: the sign is two's complement, not a bit.
    """

    mantissa: int
    bias: int
    emax: int
    largest: int
    bits: int
    infinity: int | None = None
    nan: int | None = None
    complement: bool = False

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def top(self) -> int:
        """The fraction of the largest finite number, as the 23 bits float32 stores of it."""
        return (self.largest & ((1 << self.mantissa) - 1)) << (23 - self.mantissa)

    @property
    def sign(self) -> int:
        """The sign bit of a code."""
        return 1 << (self.bits - 1)

    @property
    def nan_code(self) -> int:
        """The code that NaN is written as: all ones; 0 where there is no NaN."""
        return 0 if self.nan is None else self.sign - 1


FORMATS = {
    "mxfp8_e4m3": Format(3, 7, 8, 0x7E, 8, nan=0x7F),
    "mxfp8_e5m2": Format(2, 15, 15, 0x7B, 8, infinity=0x7C, nan=0x7D),
    "mxfp6_e3m2": Format(2, 3, 4, 0x1F, 6),
    "mxfp6_e2m3": Format(3, 1, 2, 0x1F, 6),
    "mxfp4_e2m1": Format(1, 1, 2, 0x07, 4),
    # Multiples of 2^-6 below 2 are a format with one exponent bit: codes below 64 are its
    # subnormals, and above them the step stays the same.
    "mxint8": Format(6, 1, 0, 0x7F, 8, complement=True),
}
# Elements whose scales are numbers and no powers of two.
SCALED = {
    "nvfp4": FORMATS["mxfp4_e2m1"],
    "fp8_e4m3": FORMATS["mxfp8_e4m3"],
    "fp8_e5m2": FORMATS["mxfp8_e5m2"],
}
E4M3 = FORMATS["mxfp8_e4m3"]
FLOAT16 = Format(10, 15, 15, 0x7BFF, 16, infinity=0x7C00, nan=0x7C01)


def formats() -> tuple[str, ...]:
    """Names of the formats that `quantize` writes.

    Example:
        ```python
        from moe_ref import mx

        assert {"mxfp8_e4m3", "nvfp4", "fp8_e4m3"} < set(mx.formats())
        ```
    """
    return (*FORMATS, *SCALED)


def usual_block(format: str) -> int:
    """Values that share a scale, along each axis, where nothing else is asked for."""
    if format in FORMATS:
        return 32
    return 16 if format == "nvfp4" else 128
