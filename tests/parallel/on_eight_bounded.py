"""Bounded receive buffers on eight virtual devices: who survives, what is counted, what is read."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.parallel import Bounded, ExpertParallel, exchange_plan, expected_destinations
from parallel.cases import EMULATED, PLAIN, E, K, lopsided, made, mesh_of, one_rank, poisoned, zipf
from properties.judge import assert_gradients, assert_within, compiled, named

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
FLAT, HIER = {"expert": 8}, {"node": 2, "gpu": 4}
TOKENS, LOCAL = 48, 6
SPEC = PLAIN.replace(shared_d_hidden=0)
PADDED = {"transport": "alltoall"}


def fair(sources: int, parts: int, dedup: bool) -> float:
    """Rows that a part gets from `sources` ranks under uniform routing."""
    visited = expected_destinations(num_experts=E, k=K, ranks=parts) if dedup else K
    return sources * LOCAL * visited / parts


def served(wanted: np.ndarray, rows: int, survivors: str) -> np.ndarray:
    """Rows of each source [sources, tokens] that one destination takes."""
    kept = np.zeros_like(wanted)
    room = np.full(len(wanted), rows // len(wanted)) if survivors == "per_source" else None
    total = 0
    for source, token in np.argwhere(wanted):
        if survivors == "per_source":
            kept[source, token] = room[source] > 0
            room[source] -= kept[source, token]
        else:
            kept[source, token] = total < rows
            total += 1
    return kept


def survivors_of(ids: np.ndarray, bounded: Bounded, transport: str) -> np.ndarray:
    """Slots kept by one exchange over eight ranks, one row after the other."""
    by_rank = ids.reshape(8, LOCAL, K)
    rows = min(8 * LOCAL, max(1, int(np.ceil(bounded.factor * fair(8, 8, True)))))
    if bounded.survivors == "per_source":
        rows = 8 * min(LOCAL, -(-rows // 8))
    kept = np.zeros_like(by_rank, bool)
    for rank in range(8):
        mine = by_rank // (E // 8) == rank
        kept |= mine & served(mine.any(axis=2), rows, bounded.survivors)[..., None]
    return kept.reshape(ids.shape)


@compiled
def pulled(execution, x, ids, weights, experts, cotangent):
    def run(x, weights, experts):
        return execution(x, ids, weights, experts, spec=SPEC)

    y, back, kept = jax.vjp(run, x, weights, experts, has_aux=True)
    return y, kept, back(cotangent), execution.overflow(ids, kept, spec=SPEC)


@functools.cache
def inputs(draw):
    rng = np.random.default_rng(7)
    ids = draw(rng, TOKENS, K, E)
    values = (
        rng.standard_normal((TOKENS, SPEC.d_model)),
        rng.uniform(0.5, 1.5, (TOKENS, K)),
        rng.standard_normal((TOKENS, SPEC.d_model)),
    )
    return (ids, *(jnp.asarray(a, jnp.float32) for a in values))


def judge_kept(result, draw):
    """What was kept is computed exactly, what was not has no part in anything."""
    ids, x, weights, cotangent = inputs(draw)
    y, kept, (dx, dw, de), _ = result
    left = np.where(np.asarray(kept), ids, -1)
    experts = made(SPEC).experts
    given = {"routing": {"experts": left, "weights": weights}}
    truth = oracle.layer(x, {"experts": experts}, SPEC, **given)
    back = oracle.layer_vjp(x, {"experts": experts}, SPEC, cotangent, **given)
    assert_within(y, truth.output, "y")
    assert_within(dx, back.x, "dx")
    assert_within(dw, back.weights, "dweights")
    assert_gradients({f"experts.{n}": g for n, g in named(de).items()}, back, "")


def run(draw, axes, options, bounded):
    ids, x, weights, cotangent = inputs(draw)
    options = {"receive": bounded, "implementation": "loop"} | options
    way = ExpertParallel(mesh_of(**axes), tuple(axes), **options)
    return pulled(way, x, jnp.asarray(ids, jnp.int32), weights, made(SPEC).experts, cotangent)


FLAT_CASES = [(PADDED, "per_source"), (EMULATED, "per_source"), (EMULATED, "source_order")]


@pytest.mark.parametrize(("options", "survivors"), FLAT_CASES)
def test_who_survives(options, survivors):
    bounded = Bounded(factor=0.7, survivors=survivors)
    for draw in (zipf, one_rank, lopsided):
        result, ids = run(draw, FLAT, options, bounded), inputs(draw)[0]
        kept = survivors_of(ids, bounded, options["transport"])
        np.testing.assert_array_equal(result[1], kept)
        assert (kept != (ids >= 0)).any()
        lost = np.where(kept, -1, ids).reshape(8, LOCAL, K)
        plan = exchange_plan(jnp.asarray(lost, jnp.int32), num_experts=E)
        np.testing.assert_array_equal(result[3], plan.rows_sent)
        judge_kept(result, draw)


@pytest.mark.parametrize("options", [pytest.param(PADDED, marks=pytest.mark.thorough), EMULATED])
def test_nodes(options):
    for draw in (zipf, one_rank):
        result, ids = run(draw, HIER, options, Bounded(factor=0.6)), inputs(draw)[0]
        kept = np.asarray(result[1])
        assert kept.any()
        assert (kept != (ids >= 0)).any()
        assert not (kept & (ids < 0)).any()
        assert int(np.asarray(result[3]).sum()) > 0
        judge_kept(result, draw)


def test_large_enough_drops_nothing():
    result, ids = run(zipf, FLAT, PADDED, Bounded(factor=100.0)), inputs(zipf)[0]
    np.testing.assert_array_equal(result[1], ids >= 0)
    assert not np.asarray(result[3]).any()


def test_error_and_totals():
    ids, x, _, _ = inputs(one_rank)
    layer = made(SPEC)
    for on_overflow in ("drop", "error"):
        bounded = Bounded(factor=0.7, on_overflow=on_overflow)
        options = {"receive": bounded, "implementation": "loop"} | PADDED
        way = ExpertParallel(mesh_of(**FLAT), "expert", **options)
        call = eqx.filter_jit(
            lambda layer, x, way=way: layer(x, routing=jnp.asarray(ids), execution=way)
        )
        if on_overflow == "error":
            with pytest.raises(RuntimeError, match=r"no place in a receive buffer of factor=0\.7"):
                jax.block_until_ready(call(layer, x))
        else:
            _, aux = call(layer, x)
            assert int(aux.kept.sum()) < int(aux.load.sum())
            assert aux.overflow.shape == (8, 8)
            assert np.asarray(aux.overflow)[:, 7].all()
            assert not np.asarray(aux.overflow)[:, :7].any()
