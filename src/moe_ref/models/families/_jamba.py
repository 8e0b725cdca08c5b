"""Jamba."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_PROJ, with_sizes
from moe_ref.spec import LayerSpec


def _moe(config: Config) -> list[bool]:
    period = config.integer("expert_layer_period", default=2)
    offset = config.integer("expert_layer_offset", default=1, minimum=0)
    several = config.integer("num_experts", "num_local_experts") > 1
    layers = range(config.integer("num_hidden_layers"))
    return [several and layer % period == offset for layer in layers]


def _spec(config: Config, layer: int) -> LayerSpec:
    return with_sizes(
        "jamba",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_experts", "num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("intermediate_size"),
        activation=config.activation("hidden_act"),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("jamba",),
        spec=_spec,
        stacks=(Stack(moe=_moe, prefixes=("layers.{layer}.feed_forward.",)),),
        layout=Layout(router=("router.weight",), experts=EXPERTS_PROJ),
    ),
)
