"""MiniMax-M2."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_W123, every_layer, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    config.expect("scoring_func", "sigmoid")
    config.expect("use_routing_bias", True)
    config.expect("shared_intermediate_size", 0)
    return with_sizes(
        "minimax-m2",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_local_experts", "num_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("intermediate_size"),
        activation=config.activation("hidden_act"),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("minimax_m2",),
        spec=_spec,
        stacks=(
            Stack(
                moe=every_layer,
                prefixes=("layers.{layer}.block_sparse_moe.", "layers.{layer}.mlp."),
            ),
        ),
        layout=Layout(
            router=("gate.weight",),
            selection_bias=("e_score_correction_bias",),
            experts=EXPERTS_W123,
        ),
    ),
)
