"""LFM2-MoE."""

from typing import Any

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_W123, after_dense, renormalize, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    rule: dict[str, Any] = {"renormalize": "sum", "renormalize_eps": 1e-6}
    return with_sizes(
        "lfm2-moe",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("moe_intermediate_size"),
        selection_bias=config.flag("use_expert_bias", True),
        scale=config.number("routed_scaling_factor", 1.0),
        **renormalize(config, True, rule),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("lfm2_moe",),
        spec=_spec,
        stacks=(
            Stack(
                moe=after_dense("num_dense_layers", 2), prefixes=("layers.{layer}.feed_forward.",)
            ),
        ),
        layout=Layout(
            router=("gate.weight",), selection_bias=("expert_bias",), experts=EXPERTS_W123
        ),
    ),
)
