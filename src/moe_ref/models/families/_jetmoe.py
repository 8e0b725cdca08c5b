"""JetMoE, the MLP blocks."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Fused, Layout
from moe_ref.models._rule import every_layer, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    return with_sizes(
        "jetmoe",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("intermediate_size"),
        activation=config.activation("activation_function"),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("jetmoe",),
        spec=_spec,
        stacks=(Stack(moe=every_layer, prefixes=("layers.{layer}.mlp.",)),),
        layout=Layout(
            router=("router.layer.weight",),
            experts=(Fused("input_linear.weight", "output_linear.weight"),),
            output_bias=("bias",),
        ),
    ),
)
