"""Llama 4, text alone or inside the multimodal model."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Fused, Layout
from moe_ref.models._rule import PROJ, below, with_sizes
from moe_ref.spec import LayerSpec


def _moe(config: Config) -> list[bool]:
    layers = config.integer("num_hidden_layers")
    chosen = config.array("moe_layers", int)
    if chosen is None:
        step = config.integer("interleave_moe_layer_step", default=1)
        chosen = list(range(step - 1, layers, step))
    return [layer in chosen for layer in range(layers)]


def _spec(config: Config, layer: int) -> LayerSpec:
    hidden = config.integer("intermediate_size")
    return with_sizes(
        "llama4-scout",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_local_experts"),
        k=config.integer("num_experts_per_tok", default=1),
        d_hidden=hidden,
        activation=config.activation("hidden_act"),
        shared_d_hidden=hidden,
    )


ARCHITECTURES = (
    Architecture(
        model_types=("llama4_text",),
        spec=_spec,
        stacks=(Stack(moe=_moe, prefixes=("layers.{layer}.feed_forward.",)),),
        layout=Layout(
            router=("router.weight",),
            experts=(Fused("experts.gate_up_proj", "experts.down_proj", transposed=True),),
            shared=(below("shared_expert.", PROJ),),
        ),
    ),
)
