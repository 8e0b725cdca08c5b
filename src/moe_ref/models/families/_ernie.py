"""ERNIE 4.5 MoE."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_PROJ, PROJ, below, with_sizes
from moe_ref.spec import LayerSpec


def _moe(config: Config) -> list[bool]:
    layers = config.integer("num_hidden_layers")
    first = config.integer("moe_layer_start_index", default=1, minimum=0)
    last = config.integer("moe_layer_end_index", default=-1, minimum=-1)
    last = layers - 1 if last == -1 else last
    step = config.integer("moe_layer_interval", default=1)
    return [(layer + 1) % step == 0 and first <= layer <= last for layer in range(layers)]


def _spec(config: Config, layer: int) -> LayerSpec:
    config.expect("use_bias", False)
    hidden = config.integer("moe_intermediate_size")
    shared = config.integer("moe_num_shared_experts", default=2, minimum=0)
    return with_sizes(
        "ernie4.5-moe",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("moe_num_experts", "num_experts"),
        k=config.integer("moe_k", "num_experts_per_tok"),
        d_hidden=hidden,
        activation=config.activation("hidden_act"),
        shared_d_hidden=hidden * shared,
        renormalize_eps=config.number("moe_norm_min", 1e-12),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("ernie4_5_moe",),
        spec=_spec,
        stacks=(Stack(moe=_moe, prefixes=("layers.{layer}.mlp.",)),),
        layout=Layout(
            router=("gate.weight",),
            selection_bias=(
                "moe_statics.e_score_correction_bias",
                "gate.moe_statics.e_score_correction_bias",
            ),
            selection_bias_row=True,
            experts=EXPERTS_PROJ,
            shared=(below("shared_experts.", PROJ),),
        ),
    ),
)
