"""Granite MoE."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Fused, Layout
from moe_ref.models._rule import FUSED, every_layer, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    return with_sizes(
        "granitemoe",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("intermediate_size"),
        activation=config.activation("hidden_act"),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("granitemoe",),
        spec=_spec,
        stacks=(Stack(moe=every_layer, prefixes=("layers.{layer}.block_sparse_moe.",)),),
        layout=Layout(
            router=("router.layer.weight", "router.weight"),
            experts=(Fused("input_linear.weight", "output_linear.weight"), FUSED),
        ),
    ),
)
