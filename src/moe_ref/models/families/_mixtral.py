"""Mixtral."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_W123, every_layer, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    return with_sizes(
        "mixtral-8x7b",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_local_experts", "num_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("intermediate_size"),
        activation=config.activation("hidden_act"),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("mixtral",),
        spec=_spec,
        stacks=(
            Stack(
                moe=every_layer,
                prefixes=("layers.{layer}.block_sparse_moe.", "layers.{layer}.mlp."),
            ),
        ),
        layout=Layout(router=("gate.weight",), experts=EXPERTS_W123),
    ),
)
