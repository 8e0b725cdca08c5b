"""`python -m benchmarks.ep_scaling FILE [GPUS ...]`: expert parallelism on the GPUs of one host.

The experts of a layer, forward and backward in bfloat16, with as many tokens on every GPU: each
configuration is compared with the layer on one GPU, and timed. `alone` is what one GPU computes
without any exchange: as many experts and rows as one rank has, one rank's share of the layer.
"""

import dataclasses
import functools
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from benchmarks.ep_model import ids_of, nvlink_bytes, planned
from benchmarks.gpu_shapes import LAYERS, Layer
from moe_ref.experts import Experts
from moe_ref.layers import Dropless
from moe_ref.parallel import ExpertParallel
from moe_ref.spec import LayerSpec, preset

BF16 = jnp.bfloat16
TOKENS = 4096
SHAPES = {"deepseek-v3": LAYERS[3], "qwen3-30b-a3b": LAYERS[1]}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One way to divide a layer.

    Attributes:
        layer: a name in `SHAPES`.
        mesh: sizes of the expert axes; one: flat, two: nodes and GPUs of a node.
        transport: see `ExpertParallel`.
        dedup: see `ExpertParallel`.
        chunks: see `ExpertParallel`.
        routing: see `ids_of`.
    """

    layer: str
    mesh: tuple[int, ...]
    transport: str
    dedup: bool = True
    chunks: int = 1
    routing: str = "uniform"

    @property
    def ranks(self) -> int:
        """GPUs."""
        return int(np.prod(self.mesh))


def configurations(gpus: int) -> list[Configuration]:
    """What is measured on so many GPUs, the most telling first."""
    flat = (gpus,)
    found = []
    for layer in SHAPES:
        own = "groups" if layer == "deepseek-v3" else "uniform"
        here = functools.partial(Configuration, layer, flat)
        found += [
            here("alltoall", routing=own),
            here("alltoall", dedup=False, routing=own),
            here("ragged", routing=own),
            here("ragged", dedup=False, routing=own),
            here("rounds", routing=own),
            here("alltoall", chunks=4, routing=own),
            here("ragged", chunks=4, routing=own),
            here("alltoall", routing="zipf"),
            here("ragged", routing="zipf"),
            here("alltoall", routing="one rank"),
            here("rounds", routing="one rank"),
        ]
        if layer == "deepseek-v3":
            found += [here("alltoall"), here("ragged")]
        if gpus >= 4:
            nodes = functools.partial(Configuration, layer, (2, gpus // 2), routing=own)
            found += [nodes("ragged"), nodes("alltoall"), nodes("alltoall", chunks=4)]
    return found


def spec_of(shape: Layer) -> LayerSpec:
    """A layer of the shape, SwiGLU without biases."""
    sizes = {"d_model": shape.d_model, "d_hidden": shape.d_hidden, "num_experts": shape.experts}
    return preset("qwen3-30b-a3b").replace(**sizes, k=shape.k)


def program(execution, spec: LayerSpec):
    """Forward and backward of the experts, compiled."""

    def both(parameters, x, weights, ids, cotangent):
        def apply(parameters, x, weights):
            y, _ = execution(x, ids, weights, Experts(*parameters, None, None), spec=spec)
            return y.astype(BF16)

        y, pull = jax.vjp(apply, parameters, x, weights)
        return y, *pull(cotangent)

    return jax.jit(both)


def operands(shape: Layer, tokens: int, ids: np.ndarray, mesh=None, axes=()):
    """The same random operands wherever they lie: parameters, x, weights, ids, cotangent."""

    place = None if mesh is None else jax.sharding.NamedSharding(mesh, jax.P(axes))
    d, hidden = shape.d_model, shape.d_hidden

    def draw(seed, *size, dtype=BF16):
        def numbers():
            return jax.random.normal(jax.random.key(seed), size, dtype)

        return jax.jit(numbers, out_shardings=place)()

    def matrices(seed, k, n):
        # One expert at a time: the random bits of all of them would not fit.
        def numbers():
            keys = jax.random.split(jax.random.key(seed), shape.experts)
            one = functools.partial(jax.random.normal, shape=(k, n), dtype=BF16)
            return jax.lax.map(lambda key: one(key) * BF16(k**-0.5), keys)

        return jax.jit(numbers, out_shardings=place)()

    return (
        (matrices(0, d, 2 * hidden), matrices(1, hidden, d)),
        draw(2, tokens, d),
        draw(3, tokens, shape.k, dtype=jnp.float32),
        jax.device_put(ids, place),
        draw(4, tokens, d),
    )


def abstract(shape: Layer, tokens: int, mesh, axes):
    """Shapes, dtypes and places of `operands`."""
    place = jax.sharding.NamedSharding(mesh, jax.P(axes))
    experts, d, hidden = shape.experts, shape.d_model, shape.d_hidden

    def struct(*size, dtype=BF16):
        return jax.ShapeDtypeStruct(size, dtype, sharding=place)

    return (
        (struct(experts, d, 2 * hidden), struct(experts, hidden, d)),
        struct(tokens, d),
        struct(tokens, shape.k, dtype=jnp.float32),
        struct(tokens, shape.k, dtype=jnp.int32),
        struct(tokens, d),
    )


def timed(run, calls: int) -> float:
    """Median milliseconds."""
    return measure.median_ms(run, jax.block_until_ready, calls=calls)


def alone(shape: Layer, ranks: int) -> float:
    """Milliseconds of one rank's share on one GPU, without an exchange.

    Its experts, and tokens whose k copies stay there: the rows a rank has under even routing.
    """
    own = dataclasses.replace(shape, experts=shape.experts // ranks)
    ids = ids_of("uniform", own, TOKENS, 1)
    arguments = operands(own, TOKENS, ids)
    return timed(
        functools.partial(program(Dropless(precision="default"), spec_of(own)), *arguments), 5
    )


def distance(parts, wholes) -> dict[str, float]:
    """How far results are from the layer on one GPU: root mean square over that of the layer."""

    @jax.jit
    def squares(a, b):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return jnp.sum((a - b) ** 2), jnp.sum(b**2)

    names = ("y", "w_in", "w_out", "x", "weights")
    result = {}
    for name, a, b in zip(names, jax.tree.leaves(parts), jax.tree.leaves(wholes), strict=True):
        device = b.devices().pop()
        error = total = 0.0
        for shard in a.addressable_shards:
            one = squares(jax.device_put(shard.data, device), b[shard.index])
            error, total = error + float(one[0]), total + float(one[1])
        result[name] = (error / total) ** 0.5
    return result


def mesh_of(c: Configuration):
    """The mesh and its axes."""
    axes = ("expert",) if len(c.mesh) == 1 else ("node", "gpu")
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    devices = jax.devices()[: c.ranks]
    return jax.make_mesh(c.mesh, axes, axis_types=types, devices=devices), axes


def compiled(c: Configuration):
    """The program of a configuration."""
    mesh, axes = mesh_of(c)
    execution = ExpertParallel(
        mesh,
        axes,
        transport=c.transport,
        dedup=c.dedup,
        chunks=c.chunks,
        return_dtype=BF16,
        precision="default",
    )
    shape = SHAPES[c.layer]
    run = program(execution, spec_of(shape))
    return run.lower(*abstract(shape, TOKENS * c.ranks, mesh, axes)).compile()


def measured(c: Configuration, run, whole) -> dict:
    """One row: the distance from the layer on one GPU, times and bytes.

    Args:
        c: what was compiled.
        run: of `compiled`.
        whole: results of the layer on one GPU for the same operands.
    """
    shape, tokens = SHAPES[c.layer], TOKENS * c.ranks
    ids = ids_of(c.routing, shape, tokens, c.ranks)
    arguments = operands(shape, tokens, ids, *mesh_of(c))
    results = run(*arguments)
    row = dataclasses.asdict(c)
    row |= {f"distance {name}": value for name, value in distance(results, whole).items()}
    del results
    calls = 2 if c.routing == "one rank" else 5
    ms = timed(functools.partial(run, *arguments), calls)
    before = nvlink_bytes(c.ranks)
    for _ in range(calls):
        results = run(*arguments)
    jax.block_until_ready(results)
    after = nvlink_bytes(c.ranks)
    flops = 18 * tokens * shape.k * shape.d_model * shape.d_hidden
    row |= {"ms": ms, "TFLOP/s per GPU": flops / ms / 1e9 / c.ranks}
    row |= planned(ids, shape, c.ranks, c.dedup)
    if before is not None and after is not None:
        row["measured bytes sent"] = (after - before) / calls
    return row


def main() -> None:
    """Measure every configuration; write after each, since a later one may fail."""
    file = pathlib.Path(sys.argv[1])
    counts = [int(each) for each in sys.argv[2:]] or [2, 4, 8]
    counts = [each for each in counts if each <= len(jax.devices())]
    results: dict = {"machine": measure.about(), "alone": [], "rows": []}
    for gpus in counts:
        for layer, shape in SHAPES.items():
            row = {"layer": layer, "ranks": gpus, "ms": alone(shape, gpus)}
            results["alone"].append(row)
            print(row, flush=True)
        # The routing is data, so that fewer programs than configurations are compiled.
        programs = functools.cache(compiled)
        reference: tuple = (None, None)
        for c in configurations(gpus):
            start = time.perf_counter()
            run = programs(dataclasses.replace(c, routing=""))
            seconds = time.perf_counter() - start
            shape, same = SHAPES[c.layer], (c.layer, c.routing)
            if reference[0] != same:
                reference = (None, None)  # there is no room for two
                ids = ids_of(c.routing, shape, TOKENS * gpus, gpus)
                dense = program(Dropless(precision="default"), spec_of(shape))
                whole = jax.block_until_ready(dense(*operands(shape, TOKENS * gpus, ids)))
                reference = (same, whole)
                del whole
            row = measured(c, run, reference[1]) | {"compiled in s": seconds}
            results["rows"].append(row)
            shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
            print(shown, flush=True)
            file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
