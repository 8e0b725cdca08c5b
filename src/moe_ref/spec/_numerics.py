"""In which precision a kernel computes each stage, as data."""

import dataclasses
from typing import Literal

from moe_ref._errors import require_types

DTypeName = Literal["bfloat16", "float16", "float32", "float64"]
Accumulation = Literal["nearest", "toward_zero"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numerics:
    """The dtypes a kernel declares. The oracle's error bound follows from them and nothing else.

    Args:
        inputs: dtype of activations and parameters.
        accumulate: dtype of the running sums of a matmul.
        accumulate_rounding: `nearest`, or `toward_zero` for hardware that truncates.
        flushes_subnormals: subnormal numbers may be read and written as zero.
        logits: dtype the router logits are rounded to.
        score: dtype the scores are rounded to.
        weights: dtype the combine weights are rounded to.
        pre_activation: dtype gate and up are rounded to before the activation.
        hidden: dtype of the activation's result, the second matmul's input.
        expert_output: dtype an expert's output is rounded to before combining.
        combine: dtype of the sum over a token's experts; below `accumulate` each product and each
            addition is rounded.
        output: dtype of the result.
    """

    inputs: DTypeName = "float32"
    accumulate: DTypeName = "float32"
    accumulate_rounding: Accumulation = "nearest"
    flushes_subnormals: bool = True
    logits: DTypeName = "float32"
    score: DTypeName = "float32"
    weights: DTypeName = "float32"
    pre_activation: DTypeName = "float32"
    hidden: DTypeName = "float32"
    expert_output: DTypeName = "float32"
    combine: DTypeName = "float32"
    output: DTypeName = "float32"

    def __post_init__(self):
        require_types(self)

    @classmethod
    def of(cls, dtype: DTypeName) -> "Numerics":
        """What moe_ref's own executions do with inputs of `dtype`.

        Sums, gate and up, expert outputs and the combine stay in float32 (float64 for float64);
        logits, hidden activations, weights and the result are rounded once to `dtype`.
        """
        wide: DTypeName = "float64" if dtype == "float64" else "float32"
        return cls(
            inputs=dtype,
            accumulate=wide,
            logits=dtype,
            score=wide,
            weights=dtype,
            pre_activation=wide,
            hidden=dtype,
            expert_output=wide,
            combine=wide,
            output=dtype,
        )
