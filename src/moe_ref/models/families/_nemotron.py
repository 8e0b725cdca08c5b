"""Nemotron-H, with and without latent experts."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._errors import CheckpointError
from moe_ref.models._layout import Fused, Layout, Separate
from moe_ref.models._rule import below, groups, renormalize, with_sizes
from moe_ref.spec import LayerSpec

_PLAIN = Separate(None, "up_proj.weight", "down_proj.weight")


def _moe(config: Config) -> list[bool]:
    types = config.array("layers_block_type", str) or config.array("layer_types", str)
    pattern = config.get("hybrid_override_pattern")
    if types is None and not isinstance(pattern, str):
        raise CheckpointError(
            f"{config.where}: `layers_block_type` must be a list, or `hybrid_override_pattern` a "
            f"string; got None and {pattern!r}."
        )
    return [each in ("moe", "E") for each in types or pattern]


def _spec(config: Config, layer: int) -> LayerSpec:
    config.expect("mlp_bias", False)
    return with_sizes(
        "nemotron-h",
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("n_routed_experts", "num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("moe_intermediate_size"),
        activation=config.activation("mlp_hidden_act", "relu2"),
        shared_d_hidden=config.integer("moe_shared_expert_intermediate_size"),
        d_latent=config.integer("moe_latent_size") if "moe_latent_size" in config else None,
        scale=config.number("routed_scaling_factor", 1.0),
        **groups(config, "sum_top", num=1, kept=1),
        **renormalize(config, True, {"renormalize": "sum", "renormalize_eps": 1e-20}),
    )


ARCHITECTURES = (
    Architecture(
        model_types=("nemotron_h",),
        spec=_spec,
        stacks=(Stack(moe=_moe, prefixes=("layers.{layer}.mixer.",)),),
        layout=Layout(
            router=("gate.weight",),
            selection_bias=("gate.e_score_correction_bias",),
            experts=(
                below("experts.{e}.", _PLAIN),
                Fused("experts.up_proj", "experts.down_proj"),
            ),
            shared=(below("shared_experts.", _PLAIN),),
            latent_in=("fc1_latent_proj.weight",),
            latent_out=("fc2_latent_proj.weight",),
        ),
    ),
)
