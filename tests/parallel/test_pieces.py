"""Dispatch and combine on simulated ranks: what is where, and what is rounded."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moe_ref import parallel
from parallel.cases import EMULATED

RANKS, TOKENS, K, E, D = 4, 6, 3, 8, 5
PADDED = {"transport": "alltoall"}
GATHERED = {"transport": "allgather"}


@functools.cache
def inputs():
    rng = np.random.default_rng(2)
    ids = rng.integers(-1, E, (RANKS, TOKENS, K))
    ids[1] = 7  # one rank sends everything to the last, three slots a token
    return jnp.asarray(ids, jnp.int32), np.asarray(rng.integers(1, 200, (RANKS, TOKENS, D)))


def on_ranks(function, *arrays):
    return jax.jit(jax.vmap(function, axis_name="e"))(*arrays)


@pytest.mark.parametrize("options", [EMULATED, {**EMULATED, "dedup": False}], ids=["once", "slots"])
def test_rows_lie_where_the_plan_says(options):
    ids, _ = inputs()
    tags = jnp.asarray(np.arange(RANKS * TOKENS).reshape(RANKS, TOKENS, 1), jnp.float32)

    def rank(tags, ids):
        got = parallel.dispatch(tags, ids, jnp.ones(ids.shape), axis="e", num_experts=E, **options)
        return got.x[:, 0], got.experts

    got, experts = on_ranks(rank, tags, ids)
    plan = parallel.exchange_plan(ids, num_experts=E)
    filled = np.asarray((experts >= 0).any(axis=2))
    if options.get("dedup", True):
        for place in np.argwhere(np.asarray(plan.destination) >= 0):
            goal, row = (int(a[tuple(place)]) for a in (plan.destination, plan.receive_row))
            assert int(got[goal, row]) == place[0] * TOKENS + place[1]
        np.testing.assert_array_equal(filled.sum(axis=1), plan.rows_sent.sum(axis=0))
    else:
        np.testing.assert_array_equal(filled.sum(axis=1), plan.copies_sent.sum(axis=0))


@pytest.mark.parametrize("options", [PADDED, GATHERED, EMULATED], ids=lambda o: o["transport"])
@pytest.mark.parametrize("back", [None, "bfloat16"])
def test_each_partial_sum_is_rounded_as_said(options, back):
    """Integers whose sums are exact in float32 and not in bfloat16, forward and backward."""
    ids, x = inputs()
    factors = np.arange(1, E + 1).reshape(RANKS, E // RANKS)

    def rank(x, ids, factors, cotangent):
        def run(x):
            got = parallel.dispatch(
                x, ids, jnp.ones(ids.shape, jnp.float32), axis="e", num_experts=E,
                return_dtype=back, **options,
            )  # fmt: skip
            here = got.experts >= 0
            index = jnp.where(here, got.experts, jnp.zeros_like(got.experts))
            total = jnp.where(here, factors[index], jnp.zeros_like(got.weights)).sum(axis=1)
            kept = jnp.where(here.any(axis=1)[:, None], got.x, jnp.zeros_like(got.x))
            return parallel.combine(total[:, None] * kept, got)

        y, pull = jax.vjp(run, x)
        return y, pull(cotangent)[0]

    numbers = jnp.asarray(x, jnp.float32)
    y, dx = on_ranks(rank, numbers, ids, jnp.asarray(factors, jnp.float32), numbers)

    def rounded(a):
        return a.astype(ml_dtypes.bfloat16).astype(np.float64) if back else a.astype(np.float64)

    wanted, wanted_dx = np.zeros(x.shape), np.zeros(x.shape)
    for r in range(RANKS):
        mine = np.asarray(ids) // (E // RANKS) == r
        total = np.where(mine, np.asarray(ids) + 1, 0).sum(axis=2)[..., None]
        wanted += rounded((total * x).astype(np.float32))
        wanted_dx += rounded((total * rounded(x.astype(np.float32))).astype(np.float32))
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(dx, wanted_dx)
    exact = np.where(np.asarray(ids) >= 0, np.asarray(ids) + 1, 0).sum(axis=2)[..., None] * x
    assert (np.asarray(y) != exact).any() == (back is not None)
