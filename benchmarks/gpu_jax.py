"""`python -m benchmarks.gpu_jax FILE`: moe_ref and `jax.lax.ragged_dot` on one GPU, as JSON."""

import functools
import json
import pathlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks import measure
from benchmarks.gpu_shapes import LAYERS, MATMULS, SKEWS, Layer, Matmul, group_sizes
from moe_ref.grouped import grouped_matmul
from moe_ref.layers import Dropless, MoE
from moe_ref.spec import preset

BF16 = jnp.bfloat16


def median_ms(run, calls: int = 10) -> float:
    """See `measure.median_ms`."""
    return measure.median_ms(run, jax.block_until_ready, calls=calls)


def normal(seed: int, *shape: int) -> jax.Array:
    """Normal numbers, made on the device."""
    return jax.jit(lambda: jax.random.normal(jax.random.key(seed), shape, BF16))()


def products(matmul):
    """The product alone and the gradient of each operand alone, as compiled functions."""

    def left(x, w, sizes, cotangent):
        return jax.vjp(lambda x: matmul(x, w, sizes), x)[1](cotangent)[0]

    def right(x, w, sizes, cotangent):
        return jax.vjp(lambda w: matmul(x, w, sizes), w)[1](cotangent)[0]

    return {
        "value": jax.jit(lambda x, w, sizes, cotangent: matmul(x, w, sizes)),
        "dx": jax.jit(left),
        "dw": jax.jit(right),
    }


def matmul_rows(shape: Matmul) -> list[dict]:
    """Times of one shape."""
    x, cotangent = normal(0, shape.rows, shape.k), normal(1, shape.rows, shape.n)
    w = normal(2, shape.experts, shape.k, shape.n)
    dense = jax.jit(jnp.matmul)
    ms = median_ms(lambda: dense(x, w[0]))
    rows = [{"shape": shape.name, "what": "dense matmul", "product": "value", "ms": ms}]
    print(rows[-1], flush=True)
    for skew in SKEWS:
        sizes = jnp.asarray(group_sizes(shape, skew))
        # `ragged_dot` asks for a copy of the rows for each expert, beyond the memory for many; its
        # time does not depend on the sizes.
        few = shape.experts <= 32 and skew == "uniform"
        for name in ["moe_ref"] + ["ragged_dot"] * few:
            matmul = grouped_matmul if name == "moe_ref" else jax.lax.ragged_dot
            for product, run in products(matmul).items():
                calls = 10 if name == "moe_ref" else 1
                ms = median_ms(functools.partial(run, x, w, sizes, cotangent), calls=calls)
                rows.append(
                    {
                        "shape": shape.name,
                        "skew": skew,
                        "what": name,
                        "product": product,
                        "ms": ms,
                        "TFLOP/s": shape.flops / ms / 1e9,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def layer_rows(shape: Layer) -> list[dict]:
    """Forward and backward of a layer, with cotangents rounded and not."""
    sizes = {"d_model": shape.d_model, "d_hidden": shape.d_hidden, "num_experts": shape.experts}
    spec = preset("qwen3-30b-a3b").replace(**sizes, k=shape.k)
    layer = jax.jit(lambda: MoE(spec, key=jax.random.key(0), dtype=BF16))()
    parameters, static = eqx.partition(layer, eqx.is_array)
    x, cotangent = normal(3, shape.tokens, shape.d_model), normal(4, shape.tokens, shape.d_model)
    rows = []
    for precision in ("default", "highest"):
        execution = Dropless(precision=precision)

        def apply(parameters, x, execution=execution):
            return eqx.combine(parameters, static)(x, execution=execution)[0]

        def both(parameters, x, cotangent, apply=apply):
            y, pull = jax.vjp(apply, parameters, x)
            return y, pull(cotangent)

        forward = jax.jit(apply)
        program = jax.jit(both).lower(parameters, x, cotangent).compile()
        memory = program.memory_analysis()
        forward_ms = median_ms(functools.partial(forward, parameters, x), calls=5)
        ms = median_ms(functools.partial(program, parameters, x, cotangent), calls=5)
        held = memory.temp_size_in_bytes + memory.argument_size_in_bytes
        held += memory.output_size_in_bytes
        rows.append(
            {
                "layer": shape.name,
                "what": f"moe_ref, precision {precision}",
                "forward ms": forward_ms,
                "ms": ms,
                "forward TFLOP/s": shape.flops / 3 / forward_ms / 1e9,
                "TFLOP/s": shape.flops / ms / 1e9,
                "GB": held / 1e9,
                "times parameters and gradients": held / (2 * shape.parameter_bytes),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure what is asked for: `matmuls`, `layers` or both."""
    file, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or ["matmuls", "layers"]
    results: dict = {"machine": measure.about()}
    for kind, shapes, rows in (
        ("matmuls", MATMULS, matmul_rows),
        ("layers", LAYERS, layer_rows),
    ):
        for shape in shapes if kind in wanted else ():
            results.setdefault(kind, []).extend(rows(shape))
            file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
