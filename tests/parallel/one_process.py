"""One process of several: `python one_process.py ADDRESS PROCESSES NUMBER TASK...`."""

import os
import sys
import time

import jax
import numpy as np
from jax.sharding import NamedSharding

from moe_ref import oracle
from moe_ref.parallel import ExpertParallel, time_limit
from parallel.cases import FULL, PLAIN, E, half_empty, mesh_of, one_rank, truth_of, zipf
from properties.judge import compiled, found, pull

LAYOUTS = {"flat": ("expert",), "nodes": ("node", "gpu")}
TOKENS, LIMIT = 48, 120


def spread(array, mesh, spec):
    """A global array, of which this process makes its own part."""
    host = np.asarray(array)
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def judge_parts(array, truth: oracle.Value, what: str) -> None:
    """The parts of a global array that this process has."""
    for shard in array.addressable_shards:
        value, bound = truth.value[shard.index], truth.bound[shard.index]
        ratio = oracle.ratio(np.asarray(shard.data), value, bound)
        assert (ratio <= 1).all(), f"{what}: {ratio.max()} of the bound"


@compiled
def step(layer, x, cotangent, ids, way):
    return pull(lambda m, x: m(x, routing=ids, execution=way), layer, x, cotangent)


def equal(layout: str, transport: str) -> None:
    processes, each = jax.process_count(), jax.local_device_count()
    axes = LAYOUTS[layout]
    sizes = (processes * each,) if layout == "flat" else (processes, each)
    mesh = mesh_of(**dict(zip(axes, sizes)))
    way = ExpertParallel(mesh, axes, transport=transport, implementation="loop")
    for draw in (zipf, half_empty, one_rank):
        spec = FULL if layout == "nodes" else PLAIN
        layer, x, cotangent, ids, truth, pulled = truth_of(spec, draw, TOKENS, "float32", None)
        placed = jax.tree.map(lambda a, to: spread(a, mesh, to.spec), layer, way.shardings(layer))
        given = (spread(a, mesh, jax.P(axes)) for a in (x, cotangent, ids))
        y, aux, gradients = step(placed, *given, way)
        judge_parts(y, truth.output, "y")
        gradients.pop("router.selection_bias", None)
        for name, gradient in gradients.items():
            judge_parts(gradient, found(pulled, name), name)
        load = np.bincount(np.asarray(ids)[np.asarray(ids) >= 0], minlength=E)
        np.testing.assert_array_equal(aux.load.addressable_data(0), load)
    print(f"equal: {layout}, {transport}", flush=True)


def lonely(fate: str, seconds: str) -> None:
    """The last process is gone, or elsewhere, when the others need it."""
    mesh = mesh_of(expert=jax.device_count())
    total = jax.jit(jax.shard_map(
        lambda x: jax.lax.psum(x, "expert"), mesh=mesh,
        in_specs=jax.P("expert"), out_specs=jax.P(),
    ))  # fmt: skip
    x = spread(np.ones(jax.device_count(), np.float32), mesh, jax.P("expert"))
    assert float(total(x).addressable_data(0)[0]) == jax.device_count()
    print("together", flush=True)
    if jax.process_index() == jax.process_count() - 1:
        if fate == "dies":
            os._exit(9)
        time.sleep(600)
    with time_limit(float(seconds), "a sum over all ranks"):
        jax.block_until_ready(total(x))


def main() -> None:
    address, processes, number, task, *arguments = sys.argv[1:]
    jax.distributed.initialize(address, int(processes), int(number))
    if task == "lonely":
        lonely(*arguments)
    with time_limit(LIMIT, "the tests"):
        for one in arguments:
            equal(*one.split(":"))


if __name__ == "__main__":
    main()
