"""Small layers that between them use every field of a LayerSpec, with random parameters."""

import numpy as np

from moe_ref.spec import CapacitySpec, ExpertSpec, LayerSpec, RouterSpec

TOKENS = 20


def _spec(router=None, experts=None, **fields):
    router = {"num_experts": 6, "k": 2} | (router or {})
    experts = {"d_hidden": 10} | (experts or {})
    return LayerSpec(
        d_model=14, router=RouterSpec(**router), experts=ExpertSpec(**experts), **fields
    )


GROUPS = {"num_experts": 12, "k": 3, "num_groups": 4, "groups_kept": 2}
GPT_OSS = {"expert_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 1.0, "up_offset": 1.0}

SPECS = {
    "softmax": _spec(),
    "softmax-renormalized": _spec({"renormalize": "sum"}),
    "softmax-eps": _spec({"renormalize": "sum", "renormalize_eps": 0.3}),
    "softmax-clamp-above": _spec({"renormalize": "clamp", "renormalize_eps": 0.1}),
    "softmax-clamp-below": _spec({"renormalize": "clamp", "renormalize_eps": 0.99}),
    "softmax-p2": _spec({"renormalize": "p_norm", "renormalize_p": 2.0}),
    "softmax-p1": _spec({"renormalize": "p_norm"}),
    "softmax-p-half": _spec({"renormalize": "p_norm", "renormalize_p": 0.5, "k": 3}),
    "softmax-bias": _spec({"selection_bias": True, "renormalize": "sum", "scale": 1.5}),
    "softmax-k1": _spec({"k": 1, "renormalize": "sum", "renormalize_only_above_one": True}),
    "softmax-groups": _spec(GROUPS | {"group_score": "max", "scale": 16.0}),
    "softmax-selected": _spec({"score": "softmax_selected", "router_bias": True}),
    "sigmoid": _spec({"score": "sigmoid"}),
    "sigmoid-groups": _spec(
        GROUPS
        | {"score": "sigmoid", "selection_bias": True, "group_score": "sum_top", "scale": 2.5}
        | {"renormalize": "sum", "renormalize_eps": 1e-20},
        shared_d_hidden=7,
    ),
    "sigmoid-by-logit": _spec({"score": "sigmoid", "choose_by": "logit", "k": 1}),
    "sqrt-softplus": _spec({"score": "sqrt_softplus", "renormalize": "sum", "scale": 1.5}),
    "logit": _spec({"score": "none"}),
    "all-experts": _spec({"k": 6, "renormalize": "sum"}),
    "softcap": _spec(
        {"logit_softcap": 1.5, "score": "sigmoid", "scale": 2.0, "scale_site": "output"}
    ),
    "per-expert-scale": _spec({"renormalize": "sum", "per_expert_scale": True, "scale": 0.7}),
    "hash": _spec({"hash_vocab": 11, "score": "sqrt_softplus", "renormalize": "sum", "k": 3}),
    "gpt-oss": _spec({"score": "softmax_selected", "router_bias": True}, GPT_OSS),
    "gpt-oss-hidden": _spec(experts=GPT_OSS, weight_site="hidden"),
    "gpt-oss-input": _spec(experts=GPT_OSS, weight_site="input"),
    "gelu": _spec(experts={"activation": "gelu", "expert_bias": True}, weight_site="hidden"),
    "gelu-input": _spec(experts={"activation": "gelu"}, weight_site="input"),
    "gelu-tanh": _spec(experts={"activation": "gelu_tanh"}, output_bias=True),
    "gelu-tanh-ungated": _spec(experts={"activation": "gelu_tanh", "gated": False}),
    "relu": _spec(experts={"activation": "relu", "gated": False}),
    "relu-gated-input": _spec(experts={"activation": "relu"}, weight_site="input"),
    "relu-squared": _spec(
        experts={"activation": "relu_squared", "gated": False, "expert_bias": True},
        weight_site="hidden",
    ),
    "silu-ungated": _spec(experts={"gated": False}, weight_site="hidden"),
    "latent": _spec(
        {"score": "sigmoid", "renormalize": "sum", "scale": 2.0},
        {"activation": "relu_squared", "gated": False},
        d_latent=5,
        shared_d_hidden=9,
    ),
    "latent-input": _spec(
        {"scale": 2.0, "scale_site": "output"}, d_latent=5, weight_site="input", output_bias=True
    ),
    "shared-gate": _spec(shared_d_hidden=9, shared_gate=True),
    "zero-experts": _spec(
        {"zero_experts": 3, "k": 4, "selection_bias": True, "scale": 6.0}, weight_site="hidden"
    ),
    "capacity": _spec(
        {"renormalize": "sum"}, capacity=CapacitySpec(expert_capacity=4, drop_order="token_major")
    ),
    "capacity-k-major": _spec(
        {"renormalize": "sum", "zero_experts": 1, "k": 3},
        capacity=CapacitySpec(capacity_factor=0.6, drop_order="k_major"),
        shared_d_hidden=9,
    ),
}


def parameters(spec, rng, dtype=np.float64):
    """Random parameters of a spec, in the layout of a layer."""
    router, e, d = spec.router, spec.experts, spec.d_expert

    def draw(*shape, scale=None):
        fan_in = shape[-2] if len(shape) > 1 else 4
        return (rng.standard_normal(shape) * (scale or fan_in**-0.5)).astype(dtype)

    def network(d_in, hidden, *lead):
        columns = 2 * hidden if e.gated else hidden
        record = {"w_in": draw(*lead, d_in, columns), "w_out": draw(*lead, hidden, d_in)}
        if e.expert_bias:
            record |= {"b_in": draw(*lead, columns, scale=0.5), "b_out": draw(*lead, d_in)}
        return record

    choices = router.num_choices
    params = {
        "router": {"weight": draw(choices, spec.d_model, scale=spec.d_model**-0.5)},
        "experts": network(d, e.d_hidden, router.num_experts),
    }
    if router.router_bias:
        params["router"]["bias"] = draw(choices, scale=0.5)
    if router.selection_bias:
        params["router"]["selection_bias"] = draw(choices, scale=0.1)
    if router.per_expert_scale:
        params["router"]["per_expert_scale"] = 1 + draw(choices, scale=0.2)
    if router.hash_vocab:
        table = [rng.permutation(choices)[: router.k] for _ in range(router.hash_vocab)]
        params["router"]["table"] = np.array(table)
    if spec.shared_d_hidden:
        params["shared"] = network(spec.d_model, spec.shared_d_hidden)
    if spec.shared_gate:
        params["shared_gate"] = draw(spec.d_model)
    if spec.d_latent:
        params["latent_in"] = draw(spec.d_model, spec.d_latent)
        params["latent_out"] = draw(spec.d_latent, spec.d_model)
    if spec.output_bias:
        params["output_bias"] = draw(spec.d_model)
    return params


def case(name, seed=0, dtype=np.float64):
    """Spec, parameters, tokens, and further arguments of `oracle.layer`."""
    spec, rng = SPECS[name], np.random.default_rng([seed, len(name)])
    params = parameters(spec, rng, dtype)
    x = rng.standard_normal((TOKENS, spec.d_model)).astype(dtype)
    more = {}
    if spec.router.hash_vocab:
        more["token_ids"] = rng.integers(0, spec.router.hash_vocab, TOKENS)
    return spec, params, x, more


def leaves(tree, prefix=()):
    """(path, array) of every parameter a gradient may reach."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*prefix, name))
        elif name not in ("selection_bias", "table"):
            yield (*prefix, name), value


def replaced(tree, path, value):
    """The tree with one leaf exchanged."""
    head, *rest = path
    return tree | {head: replaced(tree[head], rest, value) if rest else value}


def reach(record, path):
    """The attribute at a path."""
    for name in path:
        record = getattr(record, name)
    return record
