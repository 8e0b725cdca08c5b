"""gpt-oss; its releases are MXFP4 and must be dequantised first."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Fused, Layout
from moe_ref.models._rule import every_layer, with_sizes
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    return with_sizes(
        "gpt-oss-120b",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_local_experts", "num_experts"),
        k=config.integer("num_experts_per_tok", "experts_per_token"),
        d_hidden=config.integer("intermediate_size"),
        swiglu_alpha=config.number("swiglu_alpha", 1.702),
        swiglu_limit=config.number("swiglu_limit", 7.0),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("gpt_oss",),
        spec=_spec,
        stacks=(Stack(moe=every_layer, prefixes=("layers.{layer}.mlp.",)),),
        layout=Layout(
            router=("router.weight",),
            router_bias=("router.bias",),
            experts=(
                Fused(
                    "experts.gate_up_proj",
                    "experts.down_proj",
                    b_in="experts.gate_up_proj_bias",
                    b_out="experts.down_proj_bias",
                    transposed=True,
                    interleaved=True,
                ),
            ),
        ),
    ),
)
