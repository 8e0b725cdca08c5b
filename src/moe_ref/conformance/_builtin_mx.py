"""moe_ref's own operations on MX blocks, as they are judged."""

import functools
from typing import Any

import jax

from moe_ref.conformance._implementation import Implementation
from moe_ref.mx import Quantized, grouped_matmul_mx, quantize
from moe_ref.spec import MXSpec

# Every format, every rule, both policies and axes; tests try them all with each other.
_WAYS: tuple[dict[str, Any], ...] = (
    {"mx": MXSpec(), "jitted": False},
    {"mx": MXSpec(format="mxfp8_e5m2", rule="floor", nonfinite="te"), "axis": -2},
    {"mx": MXSpec(format="mxfp6_e3m2", rule="even"), "dtypes": ("float32", "float16")},
    {"mx": MXSpec(format="mxfp6_e2m3", rule="ceil", nonfinite="te")},
    {"mx": MXSpec(format="mxfp4_e2m1", rule="rceil_real"), "block": 16, "jitted": False},
    {"mx": MXSpec(format="mxint8", rule="floor"), "axis": -2},
)


def quantizers() -> tuple[Implementation, ...]:
    """Every format under some rule: called eagerly, with the values read back, or compiled."""
    return tuple(_quantizer(**way) for way in _WAYS)


def multipliers() -> tuple[Implementation, ...]:
    """The grouped matmul, with the gradients that JAX finds, as it is by default."""
    matmul = Implementation(
        name="grouped_matmul_mx",
        op="grouped_matmul_mx",
        function=jax.jit(grouped_matmul_mx),
        mx=MXSpec(),
        zero_tail=True,
        gradients=True,
        may_decline=False,
    )
    return (matmul,)


def _quantizer(
    *, mx: MXSpec, axis: int = -1, block: int = 32, jitted: bool = True, **declared: Any
) -> Implementation:
    function = _jitted if jitted else _read_back
    return Implementation(
        name=f"quantize[{mx.format}, {mx.rule}]",
        op="quantize",
        function=functools.partial(function, spec=mx, axis=axis, block=block),
        mx=mx,
        axis=axis,
        block=block,
        nan_elements=True,
        gradients=False,
        may_decline=False,
        **declared,
    )


def _quantize(x: Any, *, spec: MXSpec, axis: int, block: int) -> Quantized:
    options: dict[str, Any] = {"rule": spec.rule, "nonfinite": spec.nonfinite, "block": block}
    return quantize(x, spec.format, axis=axis, tail="pad", **options)


def _read_back(x: Any, **settings: Any) -> tuple[Any, Any, Any]:
    q = _quantize(x, **settings)
    return q.elements, q.scales, q.dequantize()


_jitted = functools.partial(jax.jit, static_argnames=("spec", "axis", "block"))(_quantize)
