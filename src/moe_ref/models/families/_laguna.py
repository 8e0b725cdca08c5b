"""Laguna."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_PROJ, PROJ, below, with_sizes
from moe_ref.spec import LayerSpec


def _moe(config: Config) -> list[bool]:
    layers = config.integer("num_hidden_layers")
    types = config.array("mlp_layer_types", str) or ["dense"] + ["sparse"] * (layers - 1)
    return [each == "sparse" for each in types]


def _spec(config: Config, layer: int) -> LayerSpec:
    config.expect("moe_apply_router_weight_on_input", False)
    cap = config.number("moe_router_logit_softcapping", 0.0)
    return with_sizes(
        "laguna",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("moe_intermediate_size"),
        activation=config.activation("hidden_act"),
        shared_d_hidden=config.integer("shared_expert_intermediate_size"),
        scale=config.number("moe_routed_scaling_factor", 1.0),
        logit_softcap=cap if cap > 0 else None,
    )


ARCHITECTURES = (
    Architecture(
        model_types=("laguna",),
        spec=_spec,
        stacks=(Stack(moe=_moe, prefixes=("layers.{layer}.mlp.",)),),
        layout=Layout(
            router=("gate.weight",),
            selection_bias=("experts.e_score_correction_bias", "gate.e_score_correction_bias"),
            experts=EXPERTS_PROJ,
            shared=(below("shared_expert.", PROJ), below("shared_experts.", PROJ)),
        ),
    ),
)
