"""Eight virtual devices: every transport and layout equals the dense layer.

Started by `test_on_devices.py`, or by hand:
`XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest tests/parallel/on_eight_devices.py`.
Memory that nothing has written holds NaN, and ids that would be taken for real.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.layers import MoE
from moe_ref.parallel import ExpertParallel
from parallel.cases import (
    EMULATED,
    FULL,
    PLAIN,
    ROUTINGS,
    TOKENS,
    judge,
    mesh_of,
    nothing,
    one_rank,
    poisoned,
    truth_of,
    zipf,
)
from properties.judge import assert_within

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
FLAT, HIER = {"expert": 8}, {"node": 2, "gpu": 4}
CUBE = {"data": 2, "expert": 2, "tensor": 2}
WAYS = {
    "allgather": (FLAT, {"transport": "allgather"}),
    "alltoall": (FLAT, {"transport": "alltoall"}),
    "rounds": (FLAT, {}),
    "rounds of one row": (FLAT, {"rows": 1}),
    "ragged": (FLAT, EMULATED),
    "alltoall, once a slot": (FLAT, {"transport": "alltoall", "dedup": False}),
    "nodes, alltoall, in chunks": (HIER, {"transport": "alltoall", "chunks": 2}),
    "nodes, rounds": (HIER, {}),
    "nodes, ragged": (HIER, EMULATED),
}
MORE = {
    "rounds, once a slot": (FLAT, {"dedup": False}),
    "ragged, once a slot, in chunks": (FLAT, {**EMULATED, "dedup": False, "chunks": 4}),
    "nodes, allgather": (HIER, {"transport": "allgather"}),
    "nodes, rounds of one row, in chunks": (HIER, {"rows": 1, "chunks": 3}),
    "nodes, alltoall, once a slot": (HIER, {"transport": "alltoall", "dedup": False}),
    "nodes, ragged, once a slot": (HIER, {**EMULATED, "dedup": False}),
}
FULLY = ("rounds", "nodes, ragged")
NAMES = [*WAYS, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]


def execution(name: str) -> ExpertParallel:
    axes, options = (WAYS | MORE)[name]
    # The other products compile longer; they are what "rounds" and "nodes, ragged" are tested with.
    product = "auto" if name in FULLY else "loop"
    return ExpertParallel(mesh_of(**axes), tuple(axes), implementation=product, **options)


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_dense_layer(name):
    spec = FULL if name in FULLY else PLAIN
    for draw in ROUTINGS:
        judge(execution(name), spec, draw)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"transport": "alltoall"}, marks=pytest.mark.thorough)]
)
def test_with_data_and_tensor_parallelism(options):
    cube = {"data": ("data",), "tensor": "tensor", "implementation": "loop"} | options
    way = ExpertParallel(mesh_of(**CUBE), "expert", **cube)
    for draw in ROUTINGS:
        judge(way, FULL, draw, placed=True)


@pytest.mark.thorough
@pytest.mark.parametrize("site", ["hidden", "input"])
def test_weights_inside_the_expert(site):
    spec = PLAIN.replace(weight_site=site, expert_bias=True)
    for draw in (zipf, one_rank):
        judge(execution("nodes, rounds"), spec, draw)


@pytest.mark.parametrize("name", ["ragged", pytest.param("rounds", marks=pytest.mark.thorough)])
def test_bfloat16(name):
    for draw in ROUTINGS:
        judge(execution(name), PLAIN, draw, dtype="bfloat16")


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("rounds of one row", 3), ("rounds", 0), ("alltoall", 0), ("nodes, ragged", 0)],
)
def test_ranks_without_tokens(name, tokens):
    judge(execution(name), PLAIN, zipf if tokens else nothing, tokens)


def test_nan_reaches_what_depends_on_it():
    way = execution("nodes, rounds")
    judge(way, PLAIN, zipf, nan="token")
    judge(way, PLAIN, zipf, nan="expert")


def test_sizes_that_do_not_divide():
    x = jax.ShapeDtypeStruct((8, PLAIN.d_model), jnp.float32)

    def shape(way, **changes):
        layer = jax.eval_shape(lambda: MoE(PLAIN.replace(**changes), key=jax.random.key(0)))
        return jax.eval_shape(lambda layer, x: layer(x, execution=way)[0], layer, x)

    message = r"`axes` must be of a size that divides num_experts=12; got \{'node': 2, 'gpu': 4\}"
    with pytest.raises(ValueError, match=message):
        shape(execution("nodes, rounds"), num_experts=12)
    cube = ExpertParallel(mesh_of(**CUBE), "expert", tensor="tensor")
    message = r"`tensor` must be of a size that divides d_hidden=5; got \{'tensor': 2\}"
    with pytest.raises(ValueError, match=message):
        shape(cube, d_hidden=5)
    assert shape(cube).shape == x.shape


def test_live_routing_mask_and_losses_of_whole_arrays():
    layer, x, _, _, _, _ = truth_of(FULL, zipf, TOKENS, "float32", None)
    mask = jnp.arange(TOKENS) % 3 > 0
    # Padding holds NaN: it reaches nothing.
    x = jnp.where(mask[:, None], x, jnp.full_like(x, jnp.nan))
    way = execution("nodes, rounds")
    y, aux = jax.jit(lambda m, x: m(x, mask=mask, execution=way))(layer, x)
    ids, kept = aux.routing.experts, np.asarray(mask)
    truth = oracle.layer(x, layer, FULL, experts=ids, mask=mask)
    assert not (truth.deaf_tokens[kept] == 1).any()
    assert_within(y, truth.output, "y")
    assert_within(aux.routing.weights, truth.routing.weights, "weights")
    logits = np.asarray(aux.routing.logits)
    losses = oracle.losses(logits, ids, FULL.router, mask=mask)
    both = jnp.stack([aux.losses.balance, aux.losses.z])
    assert_within(both, losses.losses, "losses")
    np.testing.assert_array_equal(aux.load, losses.load)
    np.testing.assert_array_equal(aux.kept, losses.load)
    scores = np.asarray(aux.routing.scores)[kept] + np.asarray(layer.router.selection_bias)
    best = np.sort(scores, axis=1)[:, ::-1][:, : FULL.router.k]
    got = np.take_along_axis(scores, np.asarray(ids)[kept], axis=1)
    np.testing.assert_array_equal(got, best)
