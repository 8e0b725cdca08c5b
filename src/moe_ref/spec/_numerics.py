"""In which precision a kernel computes each stage, as data."""

import dataclasses
from typing import Literal

from moe_ref._errors import require_types

DTypeName = Literal["bfloat16", "float16", "float32", "float64"]
# Formats inside matrix units: NVIDIA's TF32 is e8m10, its FP8 sums are e8m13.
UnitName = Literal["bfloat16", "float16", "float32", "float64", "tf32", "e8m13"]
Accumulation = Literal["nearest", "toward_zero"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numerics:
    """The dtypes a kernel declares. The oracle's error bound follows from them and nothing else.

    Args:
        inputs: dtype of activations and parameters.
        multiply: format the operands of a matmul are rounded to; `tf32` for matrix units that read
            float32 so; None: they are multiplied as they are.
        accumulate: dtype of the running sums of a matmul; `e8m13` for Hopper's FP8 sums.
        accumulate_rounding: `nearest`, or `toward_zero` for hardware that truncates.
        flushes_subnormals: subnormal numbers may be read and written as zero.
        projection: dtype the router's matmul reads its operands in.
        logits: dtype the router logits are rounded to.
        score: dtype the scores are rounded to.
        weights: dtype the combine weights are rounded to.
        pre_activation: dtype gate and up are rounded to before the activation.
        activation: dtype the activated gate, and up plus its offset, are rounded to before they
            multiply; transformers rounds them to the model's dtype.
        hidden: dtype of the hidden layer, the second matmul's input.
        expert_output: dtype an expert's output is rounded to before combining.
        combine: dtype of the sum over a token's experts; below `accumulate` each product and each
            addition is rounded.
        shared_gate: dtype of the shared expert's gate, its logit included.
        output: dtype of the result.
        cotangent: dtype the gradients between the matmuls of the backward pass are rounded to.
        gradient_sum: dtype in which the parts of the gradient of x are added up.
        gradient: dtype of the resulting gradients of x and of the parameters.
    """

    inputs: DTypeName = "float32"
    multiply: UnitName | None = None
    accumulate: UnitName = "float32"
    accumulate_rounding: Accumulation = "nearest"
    flushes_subnormals: bool = True
    projection: DTypeName = "float32"
    logits: DTypeName = "float32"
    score: DTypeName = "float32"
    weights: DTypeName = "float32"
    pre_activation: DTypeName = "float32"
    activation: DTypeName = "float32"
    hidden: DTypeName = "float32"
    expert_output: DTypeName = "float32"
    combine: DTypeName = "float32"
    shared_gate: DTypeName = "float32"
    output: DTypeName = "float32"
    cotangent: DTypeName = "float32"
    gradient_sum: DTypeName = "float32"
    gradient: DTypeName = "float32"

    def __post_init__(self):
        require_types(self)

    @classmethod
    def of(cls, dtype: DTypeName) -> "Numerics":
        """What moe_ref's own executions do with inputs of `dtype`.

        Sums, gate and up, their activation, expert outputs and the combine stay in float32 (float64
        for float64); logits, hidden layer, weights and the result are rounded once to `dtype`.
        Gradients are rounded to `dtype` wherever autodiff meets a number of that dtype.
        """
        wide: DTypeName = "float64" if dtype == "float64" else "float32"
        return cls(
            inputs=dtype,
            accumulate=wide,
            projection=dtype,
            logits=dtype,
            score=wide,
            weights=dtype,
            pre_activation=wide,
            activation=wide,
            hidden=dtype,
            expert_output=wide,
            combine=wide,
            shared_gate=wide,
            output=dtype,
            cotangent=dtype,
            gradient_sum=dtype,
            gradient=dtype,
        )

    @classmethod
    def on_tensor_cores(cls, dtype: DTypeName) -> "Numerics":
        """As `of`, with matmuls on NVIDIA's tensor cores, as measured on an H200.

        Sums are truncated: a product is aligned to the largest one of its instruction and keeps 2
        bits beyond float32, and the rest is cut off. float32 operands are rounded to the nearest
        TF32, which is what JAX's default precision and cuBLAS do with float32; float64 is exempt.

        Args:
            dtype: of the inputs.

        Returns:
            The numerics.

        References:
            `benchmarks/results/tensor-cores-h200.json`, by `python -m benchmarks.tensor_cores`.
        """
        plain = cls.of(dtype)
        if dtype == "float64":
            return plain
        return dataclasses.replace(
            plain,
            multiply="tf32" if dtype == "float32" else None,
            accumulate_rounding="toward_zero",
        )
