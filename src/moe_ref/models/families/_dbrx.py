"""DBRX."""

from typing import Any

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout, Stacked
from moe_ref.models._rule import with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    ffn = config.table("ffn_config")
    # A missing key means 1, null means no renormalisation.
    power = ffn.raw("moe_normalize_expert_weights", 1.0)
    rule: dict[str, Any] = {"renormalize": "none", "renormalize_p": 1.0}
    if power is not None:
        rule = {
            "renormalize": "p_norm",
            "renormalize_p": ffn.number("moe_normalize_expert_weights", 1.0),
        }
    return with_sizes(
        "dbrx",
        config,
        d_model=config.integer("d_model", "hidden_size"),
        num_experts=ffn.integer("moe_num_experts"),
        k=ffn.integer("moe_top_k"),
        d_hidden=ffn.integer("ffn_hidden_size"),
        activation=ffn.table("ffn_act_fn").activation("name"),
        **rule,
    )


ARCHITECTURES = (
    Architecture(
        model_types=("dbrx",),
        spec=_spec,
        stacks=(
            Stack(
                moe=lambda config: [True] * config.integer("n_layers", "num_hidden_layers"),
                prefixes=("blocks.{layer}.ffn.",),
            ),
        ),
        layout=Layout(
            router=("router.layer.weight",),
            experts=(Stacked("experts.mlp.w1", "experts.mlp.v1", "experts.mlp.w2"),),
        ),
    ),
)
