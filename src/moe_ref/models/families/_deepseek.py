"""DeepSeek-V2, V3 (and Kimi K2, which runs its code) and V4."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import (
    EXPERTS_PROJ,
    EXPERTS_W123,
    PROJ,
    W123,
    after_dense,
    below,
    groups,
    renormalize,
    with_sizes,
)
from moe_ref.spec import LayerSpec

V3_LAYOUT = Layout(
    router=("gate.weight",),
    selection_bias=("gate.e_score_correction_bias",),
    experts=EXPERTS_PROJ,
    shared=(below("shared_experts.", PROJ),),
)


def _v2(config: Config, layer: int) -> LayerSpec:
    config.expect("scoring_func", "softmax")
    config.expect("mlp_bias", False)
    config.expect("topk_method", "greedy", "group_limited_greedy")
    limited = config.get("topk_method", "greedy") == "group_limited_greedy"
    rule = groups(config, "max", num=None, kept=None) if limited else {}
    hidden = config.integer("moe_intermediate_size")
    return with_sizes(
        "deepseek-v2",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("n_routed_experts", "num_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=hidden,
        activation=config.activation("hidden_act"),
        shared_d_hidden=hidden * config.integer("n_shared_experts", default=2, minimum=0),
        scale=config.number("routed_scaling_factor", 1.0),
        **(rule or {"num_groups": 1, "groups_kept": 1, "group_score": "none"}),
    )


def v3(
    config: Config, layer: int, *, preset: str, num_groups: int, kept: int, scale: float
) -> LayerSpec:
    """DeepSeek-V3 and what shares its code; the keywords are what transformers assumes."""
    config.expect("scoring_func", "sigmoid")
    config.expect("topk_method", "noaux_tc")
    hidden = config.integer("moe_intermediate_size")
    return with_sizes(
        preset,
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("n_routed_experts", "num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=hidden,
        activation=config.activation("hidden_act"),
        shared_d_hidden=hidden * config.integer("n_shared_experts", default=1, minimum=0),
        scale=config.number("routed_scaling_factor", scale),
        **groups(config, "sum_top", num=num_groups, kept=kept),
        **renormalize(config, True, {"renormalize": "sum", "renormalize_eps": 1e-20}),
    )


def _v3(config: Config, layer: int) -> LayerSpec:
    return v3(config, layer, preset="deepseek-v3", num_groups=8, kept=4, scale=2.5)


def _v4_types(config: Config) -> list[str]:
    layers = config.integer("num_hidden_layers")
    types = config.array("mlp_layer_types", str)
    if types is None:
        hashed = min(layers, config.integer("num_hash_layers", default=3, minimum=0))
        types = ["hash_moe"] * hashed + ["moe"] * (layers - hashed)
    return types[:layers]


def _v4(config: Config, layer: int) -> LayerSpec:
    config.expect("scoring_func", "sqrtsoftplus")
    config.expect("n_shared_experts", 1)
    config.expect("mlp_bias", False)
    hashed = _v4_types(config)[layer] == "hash_moe"
    hidden = config.integer("moe_intermediate_size", "intermediate_size")
    return with_sizes(
        "deepseek-v4-hash" if hashed else "deepseek-v4",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("n_routed_experts", "num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=hidden,
        activation=config.activation("hidden_act"),
        shared_d_hidden=hidden,
        scale=config.number("routed_scaling_factor", 1.5),
        swiglu_limit=config.number("swiglu_limit", 10.0),
        hash_vocab=config.integer("vocab_size") if hashed else 0,
    )


ARCHITECTURES = (
    Architecture(
        model_types=("deepseek_v2",),
        spec=_v2,
        stacks=(
            Stack(moe=after_dense("first_k_dense_replace", 0), prefixes=("layers.{layer}.mlp.",)),
        ),
        layout=Layout(
            router=("gate.weight",),
            experts=EXPERTS_PROJ,
            shared=(below("shared_experts.", PROJ),),
        ),
    ),
    Architecture(
        model_types=("deepseek_v3", "kimi_k2"),
        spec=_v3,
        stacks=(
            Stack(moe=after_dense("first_k_dense_replace", 3), prefixes=("layers.{layer}.mlp.",)),
        ),
        layout=V3_LAYOUT,
    ),
    Architecture(
        model_types=("deepseek_v4",),
        spec=_v4,
        stacks=(
            Stack(
                moe=lambda config: [each in ("moe", "hash_moe") for each in _v4_types(config)],
                prefixes=("layers.{layer}.ffn.", "layers.{layer}.mlp."),
            ),
        ),
        layout=Layout(
            router=("gate.weight",),
            selection_bias=("gate.bias", "gate.e_score_correction_bias"),
            table=("gate.tid2eid",),
            experts=EXPERTS_W123,
            shared=(below("shared_experts.", W123), below("shared_experts.", PROJ)),
        ),
    ),
)
