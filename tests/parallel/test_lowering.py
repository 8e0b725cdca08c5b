"""What is handed to XLA for a GPU, made on this machine: the real ragged all-to-all."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from moe_ref.parallel import ExpertParallel
from parallel.cases import PLAIN, made


@pytest.mark.parametrize(
    ("back", "wire"), [(None, None), ("bfloat16", None), ("bfloat16", "mxfp8_e4m3")]
)
def test_ragged_on_cuda(back, wire):
    """x, ids with weights, and sums forward; cotangents and gradients backward; in their dtypes."""
    mesh = jax.make_mesh((1,), ("expert",), axis_types=(AxisType.Auto,))
    way = ExpertParallel(mesh, transport="ragged", return_dtype=back, wire=wire)
    layer = made(PLAIN, "bfloat16")
    x = jnp.zeros((8, PLAIN.d_model), jnp.bfloat16)

    def run(layer, x):
        return jnp.sum(layer(x, execution=way)[0].astype(jnp.float32))

    traced = jax.jit(jax.value_and_grad(run, argnums=(0, 1))).trace(layer, x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = re.findall(r"ragged_all_to_all.*?-> tensor<(\w+)>", text)
    d, k = PLAIN.d_model, PLAIN.router.k
    wide = "f32" if back is None else "bf16"
    rows = x.shape[0]
    # Codes, and the scale of the one block that a row has.
    forth = f"{d}xbf16" if wire is None else f"{d + 1}xui8"
    assert sorted(calls) == sorted(
        [f"{rows}x{forth}", f"{rows}x{2 * k}xi32", f"{rows}x{d}x{wide}", f"{rows}x{d}x{wide}",
         f"{rows}x{d + k}x{wide}"]
    )  # fmt: skip
