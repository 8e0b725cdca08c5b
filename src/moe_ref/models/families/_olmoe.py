"""OLMoE."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_PROJ, every_layer, renormalize, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    return with_sizes(
        "olmoe-1b-7b",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_experts", "num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("intermediate_size"),
        activation=config.activation("hidden_act"),
        **renormalize(config, False, {"renormalize": "sum"}),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("olmoe",),
        spec=_spec,
        stacks=(Stack(moe=every_layer, prefixes=("layers.{layer}.mlp.",)),),
        layout=Layout(router=("gate.weight",), experts=EXPERTS_PROJ),
    ),
)
