"""What the families share: a preset's rule with a configuration's sizes."""

from collections.abc import Callable
from typing import Any

from moe_ref.models._config import Config
from moe_ref.models._errors import CheckpointError
from moe_ref.models._layout import Fused, Separate
from moe_ref.spec import LayerSpec, preset

# `torch.nn.Linear` weights under the usual names, and those of the original LLaMA.
PROJ = Separate("gate_proj.weight", "up_proj.weight", "down_proj.weight")
W123 = Separate("w1.weight", "w3.weight", "w2.weight")
# As the modules of transformers 5 hold them.
FUSED = Fused("experts.gate_up_proj", "experts.down_proj")


def below(prefix: str, layout: Separate) -> Separate:
    """The same three names below `prefix`."""
    return Separate(layout.gate and prefix + layout.gate, prefix + layout.up, prefix + layout.down)


EXPERTS_PROJ = (below("experts.{e}.", PROJ), FUSED)
EXPERTS_W123 = (below("experts.{e}.", W123), FUSED)


def with_sizes(name: str, config: Config, **changes: Any) -> LayerSpec:
    """The rule of preset `name`, with fields read from a configuration.

    Args:
        name: of the preset.
        config: the configuration, for error messages.
        **changes: fields of the spec.

    Returns:
        The spec.

    Raises:
        CheckpointError: values that contradict each other.
    """
    base = preset(name)
    rule = base.source.partition("; sizes:")[0]
    try:
        return base.replace(name="", source=f"{rule}; sizes: {config.where}", **changes)
    except ValueError as error:
        raise CheckpointError(f"{config.where}: {error}") from None


def renormalize(config: Config, default: bool, rule: dict[str, Any]) -> dict[str, Any]:
    """`rule` if the configuration's `norm_topk_prob` is true, else no renormalisation."""
    if config.flag("norm_topk_prob", default):
        return rule
    return {"renormalize": "none", "renormalize_eps": 0.0}


def groups(config: Config, score: str, *, num: int | None, kept: int | None) -> dict[str, Any]:
    """The group rule; one group is no rule."""
    num_groups = config.integer("n_group", default=num)
    if num_groups == 1:
        return {"num_groups": 1, "groups_kept": 1, "group_score": "none"}
    groups_kept = config.integer("topk_group", default=kept)
    return {"num_groups": num_groups, "groups_kept": groups_kept, "group_score": score}


def every_layer(config: Config) -> list[bool]:
    """All layers are MoE layers."""
    return [True] * config.integer("num_hidden_layers")


def after_dense(key: str, default: int) -> Callable[[Config], list[bool]]:
    """The first layers, as many as the configuration's `key` says, are dense."""

    def moe(config: Config) -> list[bool]:
        dense = config.integer(key, default=default, minimum=0)
        config.expect("moe_layer_freq", 1)
        return [layer >= dense for layer in range(config.integer("num_hidden_layers"))]

    return moe
