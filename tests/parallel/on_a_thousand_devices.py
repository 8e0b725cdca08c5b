"""A layer and its gradient compiled for 1,024 virtual devices, 32 nodes of 32; nothing runs."""

import time

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from moe_ref.layers import MoE
from moe_ref.parallel import ExpertParallel, bytes_by_axis, collectives
from moe_ref.spec import preset
from parallel.cases import mesh_of

# DeepSeek-V3's router and shapes but for the widths, and enough experts for every device.
SPEC = preset("deepseek-v3").replace(d_model=64, d_hidden=32, shared_d_hidden=32, num_experts=1024)
TOKENS = 8 * 1024


def compiled(gradient: bool):
    mesh = mesh_of(node=32, gpu=32)
    axes = ("node", "gpu")
    way = ExpertParallel(mesh, axes, transport="alltoall")

    made = jax.eval_shape(lambda: MoE(SPEC, key=jax.random.key(0)))
    layer = jax.tree.map(
        lambda a, to: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=to), made, way.shardings(made)
    )
    tokens = NamedSharding(mesh, jax.P(axes))
    x = jax.ShapeDtypeStruct((TOKENS, SPEC.d_model), jnp.float32, sharding=tokens)

    def run(layer, x):
        y, aux = layer(x, execution=way)
        return jnp.sum(y * y) + aux.losses.balance

    function = jax.grad(run) if gradient else run
    began = time.monotonic()
    program = jax.jit(function).lower(layer, x).compile()
    return mesh, program, time.monotonic() - began


def test_forward_and_gradient_compile_within_a_minute_each():
    for gradient in (False, True):
        mesh, program, seconds = compiled(gradient)
        assert seconds < 60
        print(f"gradient={gradient}: {seconds:.1f} s")
        total = bytes_by_axis(collectives(program.as_text(), mesh=mesh))
        k, d = SPEC.router.k, SPEC.d_model
        outside, inside = 32 * 8, 32 * 32 * 8
        for axis, rows in (("node", outside), ("gpu", inside)):
            forward = rows * (d + 2 * k + d) * 4
            backward = gradient * rows * (d + d + k) * 4
            assert total[(axis,), "all-to-all"] == forward + backward
        # Nothing else grows with the tokens: losses, counts and gradients of shared parameters.
        assert set(total) <= {(("node",), "all-to-all"), (("gpu",), "all-to-all"),
                              (("node", "gpu"), "all-reduce")}  # fmt: skip
