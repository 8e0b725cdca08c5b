"""Rows by rank and by node against the analytic mean, a loop over tokens, and ragged offsets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import oracle, parallel, routing
from moe_ref.spec import RouterSpec

E, K = 256, 8
UNIFORM = RouterSpec(num_experts=E, k=K, score="sigmoid")
GROUPS = RouterSpec(
    num_experts=E, k=K, score="sigmoid", num_groups=8, groups_kept=4, group_score="sum_top"
)


def drawn(spec: RouterSpec, ranks: int, tokens: int) -> jax.Array:
    logits = jax.random.normal(jax.random.key(3), (ranks * tokens, E), jnp.float32)
    chosen = jax.jit(routing.route, static_argnums=1)(logits, spec).experts
    return chosen.reshape(ranks, tokens, K)


def leaving(sent: jax.Array, own: np.ndarray, tokens: int) -> float:
    """Rows a token sends to others."""
    return float(jnp.sum(jnp.where(jnp.asarray(own), jnp.zeros_like(sent), sent)) / tokens)


@pytest.mark.parametrize(
    ("spec", "ranks", "copies", "rows"),
    [(UNIFORM, 8, 6.99, 4.63), (GROUPS, 8, 7.00, 3.46), (UNIFORM, 64, 7.87, 7.55),
     (GROUPS, 64, 7.87, 7.39)],
)  # fmt: skip
def test_rows_a_token_sends(spec, ranks, copies, rows):
    tokens = 8192
    ids = drawn(spec, ranks, tokens // ranks)
    node = 8 if ranks == 64 else None
    plan = parallel.exchange_plan(ids, num_experts=E, ranks_per_node=node)
    own = np.eye(ranks, dtype=bool)
    assert abs(leaving(plan.copies_sent, own, tokens) / copies - 1) < 0.01
    assert abs(leaving(plan.rows_sent, own, tokens) / rows - 1) < 0.01
    if node:
        home = np.arange(ranks)[:, None] // node == np.arange(ranks // node)
        wanted = 4.63 if spec is UNIFORM else 3.46
        assert abs(leaving(plan.node_rows_sent, home, tokens) / wanted - 1) < 0.01


@pytest.mark.parametrize("ranks", [8, 64])
def test_uniform_rows_are_the_analytic_mean(ranks):
    tokens = 8192
    plan = parallel.exchange_plan(drawn(UNIFORM, ranks, tokens // ranks), num_experts=E)
    visited = np.asarray(plan.destination >= 0).sum(axis=2)
    mean = parallel.expected_destinations(num_experts=E, k=K, ranks=ranks)
    assert abs(visited.mean() - mean) < 6 * visited.std() / tokens**0.5


def test_expected_destinations_at_the_edges():
    every = {"num_experts": 8, "ranks": 4}
    assert parallel.expected_destinations(k=1, **every) == 1
    assert parallel.expected_destinations(k=7, **every) == 4
    assert parallel.expected_destinations(k=9, **every) == 4
    with pytest.raises(ValueError, match=r"`ranks` must be of .* divides 8 experts; got 3"):
        parallel.expected_destinations(num_experts=8, k=1, ranks=3)


ROUTINGS = {
    "zipf": lambda rng: np.minimum(rng.zipf(1.4, (4, 6, 5)) - 1, 7),
    "half empty": lambda rng: np.maximum(rng.integers(-8, 8, (4, 6, 5)), -1),
    "outside": lambda rng: rng.integers(-9, 17, (4, 6, 5)),
    "one rank": lambda rng: rng.integers(6, 8, (4, 6, 5)),
    "nothing": lambda rng: np.full((4, 6, 5), -1),
    "no tokens": lambda rng: np.zeros((4, 0, 5), int),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTINGS)
def test_rows_land_where_the_plan_says(name):
    ids = ROUTINGS[name](np.random.default_rng(0))
    ranks, tokens, _ = ids.shape
    plan = parallel.exchange_plan(jnp.asarray(ids), num_experts=8, ranks_per_node=2)
    known = np.where((ids >= 0) & (ids < 8), ids, -1)
    truth = oracle.traffic(known, 8)
    np.testing.assert_array_equal(plan.rows_sent, truth.rows)
    np.testing.assert_array_equal(plan.copies_sent, truth.copies)
    nodes = [
        [sum(any(e // 4 == node and e >= 0 for e in t) for t in rank) for node in range(2)]
        for rank in known
    ]
    np.testing.assert_array_equal(plan.node_rows_sent, nodes)
    # Every block by source, every row in token order, no row twice and none left out.
    for destination in range(ranks):
        expected = [
            (s, t)
            for s in range(ranks)
            for t in range(tokens)
            if any(e // 2 == destination and e >= 0 for e in known[s, t])
        ]
        at = np.argwhere(np.asarray(plan.destination) == destination)
        rows = {int(plan.receive_row[tuple(i)]): (int(i[0]), int(i[1])) for i in at}
        assert rows == dict(enumerate(expected))
        for s in range(ranks):
            lands = int(plan.output_offsets[s, destination])
            size = int(plan.recv_sizes[destination, s])
            assert [rows[i][0] for i in range(lands, lands + size)] == [s] * size
    for i in np.argwhere(np.asarray(plan.destination) >= 0):
        source, goal = i[0], int(plan.destination[tuple(i)])
        inside = int(plan.send_row[tuple(i)] - plan.input_offsets[source, goal])
        assert 0 <= inside < plan.send_sizes[source, goal]
        assert inside == plan.receive_row[tuple(i)] - plan.output_offsets[source, goal]


def test_wrong_sizes():
    ids = jnp.zeros((3, 2, 1), int)
    with pytest.raises(ValueError, match=r"`experts` must be of a number of ranks that divides 8"):
        parallel.exchange_plan(ids, num_experts=8)
    with pytest.raises(ValueError, match=r"`ranks_per_node` must be a divisor of the 3 ranks"):
        parallel.exchange_plan(ids, num_experts=9, ranks_per_node=2)
