"""The layer against a few lines a token, and what reaches what."""

import math
import types

import numpy as np
import pytest

from moe_ref import oracle
from moe_ref.spec import CapacitySpec, preset
from oracle.cases import SPECS, case, leaves, replaced


def phi(g, s):
    if s.activation == "silu":
        return g / (1 + math.exp(-s.swiglu_alpha * g))
    if s.activation == "gelu":
        return g * math.erfc(-g / math.sqrt(2)) / 2
    if s.activation == "gelu_tanh":
        return g / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    return max(g, 0.0) ** (2 if s.activation == "relu_squared" else 1)


def network(p, e, x, s):
    """One row through one network, number by number; also the hidden layer."""

    def part(name):
        return None if name not in p else p[name] if e is None else p[name][e]

    before = [float(x @ column) for column in part("w_in").T]
    if s.expert_bias:
        before = [b + float(c) for b, c in zip(before, part("b_in"), strict=True)]
    width = part("w_out").shape[0]
    hidden = []
    for f in range(width):
        g = before[f]
        if not s.gated:
            hidden.append(phi(g, s))
            continue
        u, limit = before[width + f], s.swiglu_limit or math.inf
        hidden.append(phi(min(g, limit), s) * (max(-limit, min(u, limit)) + s.up_offset))
    return np.array(hidden), part("w_out"), part("b_out") if s.expert_bias else 0.0


def token_by_token(spec, params, x, experts, weights, kept):
    y = np.zeros_like(x)
    for t, row in enumerate(x):
        read = row @ params["latent_in"] if spec.d_latent else row
        total = np.zeros_like(read)
        for e, w, keep in zip(experts[t], weights[t], kept[t], strict=True):
            if not keep:
                continue
            if e >= spec.router.num_experts:
                total += w * read
            elif spec.weight_site == "input":
                h, w_out, b_out = network(params["experts"], e, w * read, spec.experts)
                total += h @ w_out + b_out
            else:  # hidden and output agree in exact arithmetic
                h, w_out, b_out = network(params["experts"], e, read, spec.experts)
                total += w * (h @ w_out + b_out)
        if spec.router.scale_site == "output":
            total = total * spec.router.scale
        y[t] = total @ params["latent_out"] if spec.d_latent else total
        if spec.shared_d_hidden:
            h, w_out, b_out = network(params["shared"], None, row, spec.experts)
            gate = 1 / (1 + math.exp(-row @ params["shared_gate"])) if spec.shared_gate else 1.0
            y[t] += gate * (h @ w_out + b_out)
        if spec.output_bias:
            y[t] += params["output_bias"]
    return y


@pytest.mark.parametrize("name", SPECS)
def test_value_is_the_formula_token_by_token(name):
    spec, params, x, more = case(name, seed=1)
    o = oracle.layer(x, params, spec, **more)
    weights = o.routing.weights.value
    y = token_by_token(spec, params, x, o.routing.experts, weights, o.kept)
    replayed = oracle.layer(x, params, spec, routing=o.routing)
    assert oracle.ratio(y, replayed.value, replayed.bound).max() <= 1
    assert oracle.ratio(o.value, replayed.value, replayed.bound).max() <= 1
    whole = o.contributions.sum(axis=1, dtype=np.float64)
    if not (spec.shared_d_hidden or spec.output_bias):
        loose = 2.0**-24 * np.abs(o.contributions).sum(axis=1) + o.bound
        assert (np.abs(whole - o.value) <= loose).all()
    if spec.router.hash_vocab:
        table = params["router"]["table"]
        np.testing.assert_array_equal(o.routing.experts, table[more["token_ids"]])


def test_parameters_by_attribute_and_by_key():
    spec, params, x, _ = case("shared-gate")

    def record(tree):
        return types.SimpleNamespace(
            **{k: record(v) if isinstance(v, dict) else v for k, v in tree.items()}
        )

    by_key, by_attribute = (oracle.layer(x, p, spec).value for p in (params, record(params)))
    np.testing.assert_array_equal(by_key, by_attribute)


def test_padding_reaches_nothing_and_gives_zero():
    spec, params, x, _ = case("shared-gate")
    mask = np.arange(len(x)) % 3 != 0
    dirty = np.where(mask[:, None], x, np.nan)
    o = oracle.layer(dirty, params, spec, mask=mask)
    alone = oracle.layer(x[mask], params, spec)
    np.testing.assert_array_equal(o.value[mask], alone.value)
    np.testing.assert_array_equal(o.bound[mask], alone.bound)
    for part in (o.value, o.bound, o.worst, o.routing.weights.value):
        assert not part[~mask].any()
    assert (o.routing.experts[~mask] == -1).all()


def test_nan_in_a_token_or_an_expert_is_contained():
    spec, params, x, _ = case("sigmoid-groups")
    clean = oracle.layer(x, params, spec)
    experts = clean.routing.experts
    dirty = x.copy()
    dirty[3, 0] = np.nan
    o = oracle.layer(dirty, params, spec, experts=experts)
    rest = np.arange(len(x)) != 3
    np.testing.assert_array_equal(o.value[rest], clean.value[rest])
    np.testing.assert_array_equal(o.bound[rest], clean.bound[rest])
    assert not np.isfinite(o.value[3]).any()
    assert np.isinf(o.bound[3]).all()

    w_in = params["experts"]["w_in"].copy()
    w_in[5] = np.inf
    o = oracle.layer(x, replaced(params, ("experts", "w_in"), w_in), spec)
    hit = (experts == 5).any(axis=1)
    assert hit.any()
    assert not hit.all()
    np.testing.assert_array_equal(np.isfinite(o.value).all(axis=1), ~hit)
    np.testing.assert_array_equal(o.value[~hit], clean.value[~hit])


def test_repeated_experts_count_twice_and_empty_slots_not_at_all():
    spec, params, x, _ = case("gpt-oss")
    one = {"experts": np.full((len(x), 2), [2, -1]), "weights": np.full((len(x), 2), [0.75, 9])}
    two = {"experts": np.full((len(x), 2), 2), "weights": np.full((len(x), 2), [0.5, 0.25])}
    a, b = (oracle.layer(x, params, spec, routing=r) for r in (one, two))
    assert oracle.ratio(b.value, a.value, a.bound).max() <= 1
    none = {"experts": np.full((len(x), 2), -1), "weights": np.ones((len(x), 2))}
    o = oracle.layer(x, params, spec, routing=none)
    assert not o.value.any()
    assert not o.bound.any()


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("token_major", [[1, 1], [0, 1], [0, 0], [1, 1]]),
        ("k_major", [[1, 0], [1, 1], [0, 0], [1, 1]]),
    ],
)
def test_slots_are_handed_out_in_order(order, expected):
    spec, params, x, _ = case("capacity")
    spec = spec.replace(capacity=CapacitySpec(expert_capacity=2, drop_order=order))
    experts = np.array([[0, 0], [0, 1], [0, -1], [2, 1]])
    o = oracle.layer(x[:4], params, spec, experts=experts)
    assert o.kept.astype(int).tolist() == expected
    full = oracle.layer(x[:4], params, spec.replace(capacity=None), experts=experts)
    np.testing.assert_array_equal(o.routing.weights.value, full.routing.weights.value)
    assert not o.contributions[~o.kept].any()


def test_zero_experts_have_no_capacity_and_padding_takes_no_slot():
    spec, params, x, _ = case("capacity-k-major")
    spec = spec.replace(capacity=CapacitySpec(expert_capacity=1))
    zero = spec.router.num_experts
    experts = np.array([[0, zero, zero], [0, 1, zero], [0, 1, 2]])
    o = oracle.layer(x[:3], params, spec, experts=experts, mask=np.array([False, True, True]))
    assert o.kept.astype(int).tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 1]]


def test_one_expert_is_read_at_a_time_and_only_if_visited():
    spec, params, x, _ = case("gpt-oss")
    reads = []

    class Lazy:
        def __init__(self, name, array):
            self.name, self.array = name, array

        def __getitem__(self, expert):
            reads.append((expert, self.name))
            return self.array[expert]

    experts = np.full((len(x), 2), [4, 1])
    lazy = params | {"experts": {k: Lazy(k, v) for k, v in params["experts"].items()}}
    o = oracle.layer(x, lazy, spec, experts=experts)
    np.testing.assert_array_equal(o.value, oracle.layer(x, params, spec, experts=experts).value)
    assert [expert for expert, _ in reads] == [1] * 4 + [4] * 4


def test_given_routing_needs_no_router():
    spec, params, x, _ = case("softmax")
    o = oracle.layer(x, params, spec)
    bare = {"experts": params["experts"]}
    again = oracle.layer(x, bare, spec, routing=o.routing)
    assert oracle.ratio(o.value, again.value, again.bound).max() <= 1
    assert again.routing.logits is None
    assert (again.bound <= o.bound).all()


def test_tokens_that_a_kernel_may_route_otherwise_are_ambiguous():
    spec, params, x, _ = case("softmax")
    params["router"]["weight"][3] = params["router"]["weight"][2] * (1 + 2.0**-20)
    experts = oracle.layer(x, params, spec).routing.experts
    split = (experts == 2).any(axis=1) != (experts == 3).any(axis=1)
    single = oracle.layer(x.astype(np.float32), params, spec)
    assert split.any()
    assert single.ambiguous[split].all()
    assert not oracle.layer(x, params, spec).ambiguous.any()


def test_a_whole_expert_below_the_bound_is_deaf():
    spec, params, x, _ = case("softmax")
    x = x.astype(np.float32)
    params["experts"]["w_out"][2] *= 1e-12
    o = oracle.layer(x, params, spec)
    deaf = o.deaf_experts(spec.router.num_choices)
    assert deaf[2] == 1
    assert np.nanmax(np.delete(deaf, 2)) < 1


def test_no_tokens():
    spec, params, x, _ = case("sigmoid-groups")
    o = oracle.layer(x[:0], params, spec)
    assert o.value.shape == (0, spec.d_model)
    g = oracle.layer_vjp(x[:0], params, spec, x[:0])
    assert not g.experts.w_in.value.any()
    o = oracle.layer(x, params, spec, mask=np.zeros(len(x), bool))
    assert not o.value.any()
    assert not o.bound.any()


def test_numerics_of_a_spec():
    v3 = oracle.numerics_for(preset("deepseek-v3"), "bfloat16")
    assert (v3.projection, v3.logits, v3.score, v3.weights) == ("float32",) * 4
    assert (v3.inputs, v3.hidden, v3.output) == ("bfloat16",) * 3
    v4 = oracle.numerics_for(preset("deepseek-v4"), "bfloat16")
    assert (v4.projection, v4.logits, v4.score, v4.weights) == ("bfloat16",) * 4
    for name in ("deepseek-v3", "deepseek-v4"):
        wide = oracle.numerics_for(preset(name), "float64")
        stages = {k: v for k, v in vars(wide).items() if isinstance(v, str) and "rounding" not in k}
        assert set(stages.values()) == {"float64"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((2, 3))}, "`x` must be of shape"),
        ({"x": np.zeros((2, 14), int)}, "`x.dtype` must be one of"),
        ({"routing": {"experts": [[0, 1]] * 2}, "experts": [[0, 1]] * 2}, "`experts` must be None"),
        ({"routing": {"experts": [[0, 1]] * 2, "weights": [[1.0]] * 2}}, "`routing.weights`"),
        ({"mask": np.ones(3, bool)}, "`mask` must be bool of shape"),
        ({"params": {"router": {}}}, "`router.weight` must be an array: the spec calls for it"),
    ],
)
def test_errors(change, message):
    spec, params, x, _ = case("softmax")
    arguments = {"x": x[:2], "params": params, "spec": spec} | change
    with pytest.raises(ValueError, match=message):
        oracle.layer(**arguments)


def test_missing_hash_tokens():
    spec, params, x, _ = case("hash")
    with pytest.raises(ValueError, match="`token_ids` must be given with hash_vocab=11"):
        oracle.layer(x, params, spec)


def test_unknown_hash_tokens_have_no_expert():
    spec, params, x, _ = case("hash")
    ids = np.arange(len(x)) % 11
    ids[:2] = (11, -100)
    result = oracle.layer(x, params, spec, token_ids=ids)
    assert (result.routing.experts[:2] == -1).all()
    assert (result.routing.experts[2:] >= 0).all()


@pytest.mark.parametrize("name", ["gpt-oss", "latent", "shared-gate"])
def test_wrong_shapes_are_named(name):
    spec, params, x, _ = case(name)
    for path, array in leaves(params):
        changed = replaced(params, path, np.concatenate([array, array], axis=-1))
        with pytest.raises(ValueError, match=rf"`(.*\.)?{path[-1]}` must be of shape"):
            oracle.layer(x, changed, spec)
