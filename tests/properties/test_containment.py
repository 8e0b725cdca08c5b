"""A NaN or Inf reaches exactly what depends on it, in value and in gradient."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref.layers import Capacity, Dense, Dropless
from moe_ref.spec import LayerSpec, preset
from properties.judge import compiled, pull, random_layer

TOKENS = 10
WAYS = {
    "dense": Dense(),
    "dropless": Dropless(),
    "capacity": Capacity(expert_capacity=40),
}
# Weights at the output, in the middle and at the input; identity experts; a shared expert.
SPECS = {
    "output": preset("deepseek-v3").replace(
        d_model=8, d_hidden=6, num_experts=6, k=2, num_groups=1, groups_kept=1,
        group_score="none", shared_d_hidden=5,
    ),
    "hidden": preset("gpt-oss-20b").replace(
        d_model=8, d_hidden=6, num_experts=6, k=2, weight_site="hidden"
    ),
    "input": preset("longcat-flash").replace(
        d_model=8, d_hidden=6, num_experts=5, zero_experts=1, k=2, weight_site="input"
    ),
}  # fmt: skip
CASES = [("output", way) for way in WAYS] + [("hidden", "dropless"), ("input", "capacity")]
CASES += [("hidden", "dense"), ("input", "dense")]
every_case = pytest.mark.parametrize(("site", "way"), CASES)
POISONS = (np.nan, np.inf)


@functools.cache
def program(site: str, way: str):
    """Compiled once; everything else is an array."""

    @compiled
    def run(layer, x, cotangent, ids, mask):
        return pull(
            lambda m, x: m(x, routing=ids, mask=mask, execution=WAYS[way]), layer, x, cotangent
        )

    return run


def problem(spec: LayerSpec):
    layer = random_layer(spec, dtype="float64", seed=0)
    rng = np.random.default_rng(1)
    x, cotangent = (jnp.asarray(rng.standard_normal((TOKENS, 8))) for _ in range(2))
    ids = rng.integers(-1, 6, (TOKENS, 2))
    # Expert 3 has tokens, but not all; expert 2 has none; token 4 shares experts with others.
    ids[ids == 2] = 0
    ids[:3], ids[4], ids[5] = [3, 1], [0, 1], [4, 3]
    return layer, x, cotangent, ids, np.ones(TOKENS, bool)


def equal(actual, wanted, what):
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(wanted), err_msg=what)


@every_case
def test_a_token(site, way):
    """Its own output and gradient, the experts it visits, router and shared; nothing else."""
    layer, x, cotangent, ids, mask = problem(SPECS[site])
    run, others = program(site, way), np.arange(TOKENS) != 4
    y, _, gradients = run(layer, x, cotangent, ids, mask)
    apart = ~np.isin(np.arange(len(layer.experts.w_in)), ids[4])
    for poison in POISONS:
        bad_y, _, bad = run(layer, x.at[4, 2].set(poison), cotangent, ids, mask)
        equal(bad_y[others], y[others], "y of other tokens")
        equal(bad["x"][others], gradients["x"][others], "dx of other tokens")
        # A clamp may turn Inf into its limit, a NaN it keeps.
        if np.isnan(poison):
            assert np.isnan(bad_y[4]).all()
        for name in ("w_in", "w_out"):
            mine, wanted = bad[f"experts.{name}"], gradients[f"experts.{name}"]
            equal(mine[apart], wanted[apart], f"d{name} of experts it does not visit")
            if np.isnan(poison):
                assert np.isnan(np.asarray(mine)[~apart]).any(axis=(1, 2)).all()


@every_case
def test_an_experts_parameters(site, way):
    """Tokens that visit it, and its own gradient; nothing else."""
    layer, x, cotangent, ids, mask = problem(SPECS[site])
    run, reached = program(site, way), (ids == 3).any(axis=1)
    others = np.arange(len(layer.experts.w_in)) != 3
    y, _, gradients = run(layer, x, cotangent, ids, mask)
    for poison in POISONS:
        for name in ("w_in", "w_out"):
            sick = eqx.tree_at(
                lambda m, name=name: getattr(m.experts, name),
                layer,
                getattr(layer.experts, name).at[3, 1, 2].set(poison),
            )
            bad_y, _, bad = run(sick, x, cotangent, ids, mask)
            equal(bad_y[~reached], y[~reached], "y of tokens elsewhere")
            equal(bad["x"][~reached], gradients["x"][~reached], "dx of tokens elsewhere")
            for part in ("w_in", "w_out"):
                mine, wanted = bad[f"experts.{part}"], gradients[f"experts.{part}"]
                equal(mine[others], wanted[others], f"d{part} of other experts")
            if np.isnan(poison):
                assert np.isnan(bad_y[reached]).any(axis=1).all()


@every_case
def test_an_expert_without_tokens(site, way):
    """Whatever it holds, nothing changes, and its gradient is exactly 0."""
    layer, x, cotangent, ids, mask = problem(SPECS[site])
    run = program(site, way)
    sick = eqx.tree_at(
        lambda m: m.experts,
        layer,
        jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), layer.experts),
    )
    clean, bad = (run(m, x, cotangent, ids, mask) for m in (layer, sick))
    jax.tree.map(lambda a, b: equal(a, b, "idle expert"), bad, clean)
    for name in ("w_in", "w_out"):
        assert not np.asarray(bad[2][f"experts.{name}"][2]).any()


@every_case
def test_padding(site, way):
    """Its contents, in x and in the cotangent, reach nothing: the same bits as with zeros."""
    layer, x, cotangent, ids, _ = problem(SPECS[site])
    run, mask = program(site, way), np.arange(TOKENS) % 3 > 0
    real = jnp.asarray(mask)[:, None]
    clean = run(layer, jnp.where(real, x, 0), jnp.where(real, cotangent, 0), ids, mask)
    for poison in POISONS:
        bad_x, bad_cotangent = (jnp.where(real, a, poison) for a in (x, cotangent))
        found = run(layer, bad_x, bad_cotangent, ids, mask)
        jax.tree.map(lambda a, b: equal(a, b, "padding"), found, clean)
    y, aux, gradients = clean
    assert not np.asarray(y)[~mask].any()
    assert not np.asarray(gradients["x"])[~mask].any()
    assert (np.asarray(aux.routing.experts)[~mask] == -1).all()
    assert np.asarray(y)[mask].any(axis=1).all()


@every_case
def test_a_cotangent(site, way):
    """A NaN in the cotangent of one token: its own gradient and those of its experts."""
    layer, x, cotangent, ids, mask = problem(SPECS[site])
    run, others = program(site, way), np.arange(TOKENS) != 4
    _, _, gradients = run(layer, x, cotangent, ids, mask)
    apart = ~np.isin(np.arange(len(layer.experts.w_in)), ids[4])
    _, _, bad = run(layer, x, cotangent.at[4, 2].set(jnp.nan), ids, mask)
    equal(bad["x"][others], gradients["x"][others], "dx of other tokens")
    assert np.isnan(bad["x"][4]).all()
    for name in ("w_in", "w_out"):
        mine, wanted = bad[f"experts.{name}"], gradients[f"experts.{name}"]
        equal(mine[apart], wanted[apart], f"d{name} of experts it does not visit")
