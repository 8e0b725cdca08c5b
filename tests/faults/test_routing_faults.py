"""Public faults of routing, each as the small case that shows it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from faults.build import WAYS, identity_experts
from moe_ref.routing import choose, jitter, route
from moe_ref.spec import RouterSpec

NAN, INF = np.nan, np.inf
routed = jax.jit(route, static_argnames="spec")


def test_rejected_groups_are_masked_with_minus_inf_not_zero():
    """A rejected expert never beats an eligible one, also where all eligible scores are negative.

    With 0 in place of the rejected scores, experts 4, 5 and 6 would be chosen here.
    Reference: vllm-project/vllm#13474.
    """
    spec = RouterSpec(
        num_experts=8,
        k=3,
        score="sigmoid",
        selection_bias=True,
        num_groups=4,
        groups_kept=2,
        group_score="sum_top",
        group_top=2,
    )
    logits = jnp.array([[2, 1, 0, -1, -2, -3, -2.5, -3.5]], jnp.float32)
    assert routed(logits, spec=spec, bias=-jnp.ones(8)).experts.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(("score", "wanted"), [("max", [0, 1]), ("sum_top", [2, 3])])
def test_group_score_is_the_rule_that_was_named(score, wanted):
    """The best of a group and the sum of its best two choose different groups."""
    spec = RouterSpec(num_experts=6, k=2, num_groups=3, groups_kept=1, group_score=score)
    scores = jnp.array([[0.9, 0, 0.5, 0.5, 0.8, 0.1]])
    assert choose(scores, spec=spec).tolist() == [wanted]


@pytest.mark.parametrize(
    "score", ["softmax", "softmax_selected", "sigmoid", "sqrt_softplus", "none"]
)
def test_nan_and_inf_rows_give_distinct_ids_and_leave_other_rows_alone(score):
    """k different ids in range on every row; the rows beside keep their bits."""
    spec = RouterSpec(num_experts=8, k=3, score=score)
    normal = np.linspace(-1, 1, 8)[[3, 1, 4, 0, 5, 7, 2, 6]]
    one_nan = normal.copy()
    one_nan[2] = NAN
    rows = np.stack([np.full(8, NAN), np.full(8, -INF), one_nan, normal, np.full(8, INF)])
    routing = routed(jnp.asarray(rows, jnp.float32), spec=spec)
    ids = np.asarray(routing.experts)
    assert ((ids >= 0) & (ids < 8)).all()
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()
    alone = routed(jnp.asarray(rows[3:4], jnp.float32), spec=spec)
    for name in ("experts", "weights", "scores"):
        assert (getattr(routing, name)[3] == getattr(alone, name)[0]).all()
    # NaN ranks first, so it is chosen, and its weight shows it.
    assert ids[0].tolist() == ids[1].tolist() == [0, 1, 2]
    assert np.isnan(np.asarray(routing.weights)[0]).all()
    assert 2 in ids[2]
    assert np.isnan(np.asarray(routing.weights)[2, ids[2] == 2]).all()


TIES = {
    "all equal": (RouterSpec(num_experts=8, k=3), [0] * 8, [0, 1, 2]),
    "at the k boundary": (RouterSpec(num_experts=8, k=3), [0, 1, 3, 1, 2, 1, 0, 0], [2, 4, 1]),
    "at the group boundary": (
        RouterSpec(num_experts=8, k=3, num_groups=4, groups_kept=2, group_score="max"),
        [2, 0, 1, 2, 5, 0, 2, 1],
        [4, 0, 1],
    ),
}


@pytest.mark.parametrize(("spec", "row", "wanted"), TIES.values(), ids=TIES)
def test_ties_go_to_the_lower_index_every_time(spec, row, wanted):
    """Alone, in a batch, compiled, mapped, and the twentieth time."""
    row = jnp.asarray(row, jnp.float32)
    batch = jnp.stack([row] * 20)
    assert route(row[None], spec).experts.tolist() == [wanted]
    assert routed(batch, spec=spec).experts.tolist() == [wanted] * 20
    mapped = jax.jit(jax.vmap(lambda row: route(row[None], spec).experts[0]))
    assert mapped(batch).tolist() == [wanted] * 20
    for _ in range(20):
        assert routed(batch[:1], spec=spec).experts.tolist() == [wanted]


@pytest.mark.parametrize("execution", WAYS.values(), ids=WAYS)
def test_router_noise_does_not_reach_the_experts(execution):
    """Identity experts give back the clean x, whatever the key; the logits depend on it."""
    layer = identity_experts(3, 2, k=1, renormalize="sum")
    x = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, (4, 3)), jnp.float32)

    @eqx.filter_jit
    def noisy(layer, x, key):
        y, aux = layer(x, router_input=jitter(x, key, eps=0.1), execution=execution)
        return y, aux.routing.logits

    (y, logits), (again, other_logits) = (noisy(layer, x, jax.random.key(i)) for i in (0, 1))
    assert (y == x).all()
    assert (again == x).all()
    assert (logits[:, 1] != other_logits[:, 1]).all()
