"""Rows that cross as MX codes, on eight virtual devices: the experts read what the codes stand for.

Started by `test_on_devices.py`. Memory that nothing has written holds codes and scales of NaN.
"""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.experts import Experts
from moe_ref.parallel import Bounded, ExpertParallel, bytes_by_axis, collectives
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec
from parallel.cases import EMULATED, half_empty, mesh_of, one_rank, poisoned, zipf
from properties.judge import assert_within, compiled

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
E, K, D, TOKENS = 8, 3, 40, 45  # of the columns a block of 32 and one of 8
FORMAT = "mxfp8_e4m3"
SPEC = LayerSpec(d_model=D, router=RouterSpec(num_experts=E, k=K), experts=ExpertSpec(d_hidden=4))
FLAT, HIER = {"expert": 8}, {"node": 2, "gpu": 4}
CUBE = {"data": 2, "expert": 2, "tensor": 2}
ONCE_A_SLOT = {"dedup": False}
WAYS = {
    "allgather": (FLAT, {"transport": "allgather"}),
    "alltoall, once a slot": (FLAT, {"transport": "alltoall", "dedup": False}),
    "ragged": (FLAT, EMULATED),
    "nodes, rounds of four rows": (HIER, {"rows": 4}),
}
MORE = {
    "alltoall": (FLAT, {"transport": "alltoall"}),
    "rounds": (FLAT, {}),
    "rounds, once a slot": (FLAT, {"dedup": False}),
    "ragged, once a slot": (FLAT, {**EMULATED, "dedup": False}),
    "nodes, allgather": (HIER, {"transport": "allgather"}),
    "nodes, alltoall, in chunks": (HIER, {"transport": "alltoall", "chunks": 2}),
    "nodes, ragged": (HIER, EMULATED),
    "nodes, ragged, once a slot": (HIER, {**EMULATED, "dedup": False}),
    "data and tensor": (CUBE, {"axes": "expert", "data": ("data",), "tensor": "tensor"}),
}
NAMES = [*WAYS, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]


def execution(name: str, **more) -> ExpertParallel:
    axes, options = (WAYS | MORE)[name]
    options = {"axes": tuple(axes), "implementation": "loop", "wire": FORMAT} | options | more
    return ExpertParallel(mesh_of(**axes), **options)


@functools.cache
def drawn(draw, dtype: str, nan: bool):
    """x of many powers of two, what is read of it, ids, weights, experts and a cotangent."""
    rng = np.random.default_rng(0)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    normal = rng.standard_normal
    x = (normal((TOKENS, D)) * 2.0 ** rng.integers(-6, 7, (TOKENS, D))).astype(kind)
    if nan:
        x[TOKENS // 2, 3] = np.nan
    experts = {
        "w_in": (normal((E, D, 8)) / 8).astype(kind),
        "w_out": normal((E, 4, D)).astype(kind),
    }
    ids, weights = draw(rng, TOKENS, K, E), rng.random((TOKENS, K)).astype(np.float32)
    return x, read(x), ids, weights, experts, normal((TOKENS, D)).astype(np.float32)


def read(x: np.ndarray) -> np.ndarray:
    """Quantised and back, by the oracle."""
    q = oracle.quantize(x, FORMAT, axis=-1)
    return oracle.dequantize(q.elements, q.scales, FORMAT, axis=-1).astype(x.dtype)


@compiled
def run(execution, x, ids, weights, experts, cotangent):
    def sums(x, weights, experts):
        return execution(x, ids, weights, Experts(**experts, b_in=None, b_out=None), spec=SPEC)

    y, back, kept = jax.vjp(sums, x, weights, experts, has_aux=True)
    return y, kept, back(cotangent)


def judge(name: str, draw, dtype: str = "float32", nan: bool = False, **more) -> None:
    """Against the experts on what is read; the experts on x itself are another matter."""
    x, at, ids, weights, experts, cotangent = drawn(draw, dtype, nan)
    given = jax.tree.map(jnp.asarray, (x, ids, weights, experts, cotangent))
    y, kept, (dx, dw, de) = run(execution(name, **more), *given)
    if more:
        np.testing.assert_array_equal(kept, run(execution(name, **more, wire=None), *given)[1])
        assert (np.asarray(kept) != (ids >= 0)).any()
    else:
        np.testing.assert_array_equal(kept, ids >= 0)
    left = np.where(kept, ids, -1)

    def wanted(x):
        given = {"routing": {"experts": left, "weights": weights}}
        return (
            oracle.layer(x, {"experts": experts}, SPEC, **given).output,
            oracle.layer_vjp(x, {"experts": experts}, SPEC, cotangent, **given),
        )

    output, pulled = wanted(at)
    truths = [output, pulled.x, pulled.weights, pulled.experts.w_in, pulled.experts.w_out]
    names = ["y", "x", "weights", "w_in", "w_out"]
    actual = [y, dx, dw, de["w_in"], de["w_out"]]
    for what, result, truth in zip(names, actual, truths, strict=True):
        assert_within(result, truth, f"{name} {what}")
    if not nan:
        unread, _ = wanted(x)
        assert (oracle.ratio(np.asarray(y), unread.value, unread.bound) > 1).any()


@pytest.mark.parametrize("name", NAMES)
def test_experts_read_what_the_codes_stand_for(name):
    for draw in (zipf, half_empty, one_rank):
        judge(name, draw, "bfloat16" if name == "alltoall, once a slot" else "float32")


@pytest.mark.parametrize("name", ["alltoall", "ragged"])
def test_bounded_buffers_drop_the_same_rows(name):
    for draw in (zipf, one_rank):
        judge(name, draw, receive=Bounded(factor=0.7))


def test_nan_reaches_what_depends_on_it():
    judge("ragged", zipf, nan=True)


def test_bytes_on_every_axis():
    """A byte for each of 40 columns and 2 scales; ids with weights; sums in float32."""
    mesh, tokens = mesh_of(**HIER), 4 * 8
    way = ExpertParallel(
        mesh, tuple(HIER), transport="alltoall", implementation="loop", wire=FORMAT
    )

    def sums(x, ids, weights, w_in, w_out):
        return way(x, ids, weights, Experts(w_in, w_out, None, None), spec=SPEC)[0]

    shapes = [(tokens, D), (tokens, K), (tokens, K), (E, D, 8), (E, 4, D)]
    dtypes = [jnp.float32, jnp.int32, *[jnp.float32] * 3]
    where = jax.NamedSharding(mesh, jax.P(tuple(HIER)))
    given = [jax.ShapeDtypeStruct(s, d, sharding=where) for s, d in zip(shapes, dtypes)]
    text = jax.jit(sums).lower(*given).compile().as_text()
    expected, rows = {}, 4
    for axis, ranks in HIER.items():
        rows *= ranks
        expected[(axis,), "all-to-all"] = rows * (D + 2 + 2 * K * 4 + D * 4)
    assert bytes_by_axis(collectives(text, mesh=mesh)) == expected
