"""What moe_ref says of its own implementations."""

import jax

from moe_ref.conformance import builtin
from moe_ref.spec import Numerics


def test_on_a_gpu_sums_of_narrow_dtypes_are_those_of_tensor_cores(monkeypatch):
    assert not any(each.numerics for each in builtin())
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for each in builtin():
        assert each.numerics == {
            name: Numerics.on_tensor_cores(name) for name in ("bfloat16", "float16")
        }
