"""GLM-4.5: the code of DeepSeek-V3."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._rule import after_dense
from moe_ref.models.families._deepseek import V3_LAYOUT, v3
from moe_ref.spec import LayerSpec


def _spec(config: Config, layer: int) -> LayerSpec:
    return v3(config, layer, preset="glm4-moe", num_groups=1, kept=1, scale=1.0)


ARCHITECTURES = (
    Architecture(
        model_types=("glm4_moe",),
        spec=_spec,
        stacks=(
            Stack(moe=after_dense("first_k_dense_replace", 1), prefixes=("layers.{layer}.mlp.",)),
        ),
        layout=V3_LAYOUT,
    ),
)
