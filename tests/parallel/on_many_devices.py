"""Programs compiled for many virtual devices, and read: bytes, memory, independence.

Nothing runs here. Started by `test_on_devices.py` with 256 devices.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

from moe_ref.experts import Experts
from moe_ref.parallel import ExpertParallel, bytes_by_axis, collectives
from moe_ref.parallel._hlo import arrays, read_program
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec

D, K, F32 = 24, 2, 4


def mesh_of(**sizes: int) -> Mesh:
    count = int(np.prod(list(sizes.values())))
    devices = np.array(jax.devices()[:count]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


@functools.cache
def program(sizes: tuple, tokens: int, options: tuple, *, gradient: bool = False):
    """The execution, compiled for `tokens` tokens of 4 bytes a number on each device."""
    mesh = mesh_of(**dict(sizes))
    options = {"implementation": "loop"} | dict(options)
    names, ranks = tuple(dict(sizes)), mesh.size
    way = ExpertParallel(mesh, names, **options)
    spec = LayerSpec(
        d_model=D, router=RouterSpec(num_experts=ranks, k=K), experts=ExpertSpec(d_hidden=4)
    )

    def of(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, jax.P(names)))

    f32 = functools.partial(of, jnp.float32)
    total = tokens * ranks
    given = (
        f32(total, D),
        of(jnp.int32, total, K),
        f32(total, K),
        f32(ranks, D, 8),
        f32(ranks, 4, D),
    )

    def run(x, ids, weights, w_in, w_out):
        return way(x, ids, weights, Experts(w_in, w_out, None, None), spec=spec)[0]

    def pull(x, ids, weights, w_in, w_out, dy):
        parameters = (x, weights, w_in, w_out)
        y, back = jax.vjp(lambda x, w, a, b: run(x, ids, w, a, b), *parameters)
        return y, back(dy)

    lowered = jax.jit(pull).lower(*given, given[0]) if gradient else jax.jit(run).lower(*given)
    return mesh, lowered.compile()


def counted(sizes: dict, tokens: int, trips=None, gradient: bool = False, **options):
    mesh, compiled = program(
        tuple(sizes.items()), tokens, tuple(options.items()), gradient=gradient
    )
    return bytes_by_axis(collectives(compiled.as_text(), mesh=mesh), trips=trips)


def dispatched(rows: int) -> int:
    """Rows of x, and their ids and weights."""
    return rows * (D + 2 * K) * F32


def back(rows: int) -> int:
    return rows * D * F32


A2A = "all-to-all"
FLAT = [8, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (64, 256))]
NODES = [(2, 4), pytest.param(8, 8, marks=pytest.mark.thorough), (16, 16)]


@pytest.mark.parametrize("ranks", FLAT)
def test_bytes_of_a_padded_exchange(ranks):
    tokens, axis = 4, ("expert",)
    got = counted({"expert": ranks}, tokens, transport="alltoall")
    rows = ranks * tokens
    assert got == {(axis, A2A): dispatched(rows) + back(rows)}


@pytest.mark.parametrize("ranks", FLAT)
def test_bytes_of_an_all_gather(ranks):
    tokens, axis = 4, ("expert",)
    got = counted({"expert": ranks}, tokens, transport="allgather")
    rows = ranks * tokens
    assert got == {(axis, "all-gather"): dispatched(rows), (axis, A2A): back(rows)}


@pytest.mark.parametrize(("nodes", "gpus"), NODES)
def test_bytes_between_nodes_and_inside(nodes, gpus):
    tokens, sizes = 4, {"node": nodes, "gpu": gpus}
    got = counted(sizes, tokens, transport="alltoall")
    outside, inside = nodes * tokens, gpus * nodes * tokens
    assert got == {
        (("node",), A2A): dispatched(outside) + back(outside),
        (("gpu",), A2A): dispatched(inside) + back(inside),
    }


@pytest.mark.parametrize(("nodes", "gpus"), NODES)
def test_bytes_of_rounds(nodes, gpus):
    """Of one round outside, and of one inside, times their numbers."""
    sizes = {"node": nodes, "gpu": gpus}
    got = counted(sizes, 8, trips={1: 3, 2: 3 * 5}, transport="rounds", rows=2)
    outside, inside = nodes * 2, gpus * 2
    assert got[("node",), A2A] == 3 * (dispatched(outside) + back(outside))
    assert got[("gpu",), A2A] == 15 * (dispatched(inside) + back(inside))
    # The numbers of rounds, agreed on once outside and in each round for the inside.
    assert got[("node", "gpu"), "all-reduce"] == F32 * (1 + 3)


def test_bytes_without_dedup():
    tokens, ranks = 4, 8
    got = counted({"expert": ranks}, tokens, transport="alltoall", dedup=False)
    rows = ranks * tokens * K
    assert got == {(("expert",), A2A): rows * (D + 2) * F32 + back(rows)}


def test_bytes_of_the_gradient():
    """Backwards the cotangents go out, and gradients of x and of the weights come back."""
    tokens, ranks = 4, 8
    got = counted({"expert": ranks}, tokens, gradient=True, transport="alltoall")
    rows = ranks * tokens
    forward = dispatched(rows) + back(rows)
    assert got == {(("expert",), A2A): forward + rows * D * F32 + rows * (D + K) * F32}


def rows_of(compiled) -> dict[str, int]:
    """Most rows of any array of width D, and of any that a collective brings."""
    lines = [line for c in read_program(compiled.as_text())[0].values() for line in c.values()]

    def most(lines):
        shapes = [shape for line in lines for _, shape in arrays(line.text.split(" metadata=")[0])]
        return max((shape[0] for shape in shapes if len(shape) == 2 and shape[1] == D), default=0)

    received = [line for line in lines if line.opcode == A2A]
    total = sum(most([line]) * 8 for line in received[:1])
    return {"any": most(lines), "received": total}


def test_rounds_receive_a_fixed_number_of_rows():
    """8 ranks, 2 rows from each to each, whatever the routing and however many tokens."""
    ranks, rows = 8, 2
    flat = (("expert", ranks),)
    for tokens, gradient in ((32, False), (128, True)):
        way = (("transport", "rounds"), ("rows", rows))
        _, compiled = program(flat, tokens, way, gradient=gradient)
        found = rows_of(compiled)
        assert found["received"] == ranks * rows
        # Nothing is larger than the tokens themselves: no buffer for the worst case.
        assert found["any"] == tokens
    _, worst = program(flat, 32, (("transport", "alltoall"),))
    assert rows_of(worst)["any"] >= ranks * 32


def components(compiled) -> list[set[str]]:
    """Collectives and branches of the entry, joined where one needs what another computes."""
    computations, entry = read_program(compiled.as_text())
    lines = computations[entry]
    heavy = {name for name, line in lines.items() if line.opcode in (A2A, "conditional")}
    parts: list[set[str]] = []
    for name in heavy:
        seen, stack = set(), [name]
        while stack:
            at = stack.pop()
            if at not in seen and at in lines:
                seen.add(at)
                stack += lines[at].operands
        joined = seen & heavy
        touching = [part for part in parts if part & joined]
        parts = [part for part in parts if not part & joined]
        parts.append(joined.union(*touching))
    return [{lines[name].opcode + ":" + name for name in part} for part in parts]


@pytest.mark.parametrize(
    ("sizes", "chunks", "gradient"),
    [({"node": 2, "gpu": 2}, 1, True), ({"node": 2, "gpu": 2}, 3, True), ({"expert": 4}, 2, False)],
)
def test_chunks_do_not_wait_for_each_other(sizes, chunks, gradient):
    options = (("transport", "alltoall"), ("chunks", chunks))
    _, compiled = program(tuple(sizes.items()), 6, options, gradient=gradient)
    parts = components(compiled)
    assert len(parts) == chunks
    exchanges = len(sizes) * (5 if gradient else 3)
    for part in parts:
        assert sum(name.startswith(A2A) for name in part) == exchanges
        # The experts, in buffers of one size or another.
        assert any(name.startswith("conditional") for name in part)
