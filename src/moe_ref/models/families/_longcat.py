"""LongCat-Flash: identity experts."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import PROJ, below, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    # transformers builds this bias and never adds it.
    config.expect("router_bias", False)
    config.expect("zero_expert_type", "identity")
    config.expect("norm_topk_prob", False)
    return with_sizes(
        "longcat-flash",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("n_routed_experts", "num_local_experts"),
        zero_experts=config.integer("zero_expert_num", default=0, minimum=0),
        k=config.integer("moe_topk", "num_experts_per_tok"),
        d_hidden=config.integer("expert_ffn_hidden_size", "moe_intermediate_size"),
        activation=config.activation("hidden_act"),
        scale=config.number("routed_scaling_factor", 6.0),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("longcat_flash",),
        spec=_spec,
        stacks=(
            Stack(
                moe=lambda config: [True] * config.integer("num_layers"),
                prefixes=("layers.{layer}.mlp.",),
            ),
        ),
        layout=Layout(
            router=("router.classifier.weight",),
            selection_bias=("router.e_score_correction_bias",),
            experts=(below("experts.{e}.", PROJ),),
            # transformers gives the identity experts, too, a first projection, and never uses it.
            ignored=r"experts\.\d+\.(gate|up)_proj\.weight",
        ),
    ),
)
