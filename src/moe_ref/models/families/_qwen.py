"""Qwen2-MoE, Qwen3-MoE, Qwen3-Next."""

import functools
from typing import Any

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout
from moe_ref.models._rule import EXPERTS_PROJ, PROJ, below, renormalize, with_sizes
from moe_ref.spec import LayerSpec


def _moe(config: Config) -> list[bool]:
    dense = config.array("mlp_only_layers", int) or []
    step = config.integer("decoder_sparse_step", default=1)
    layers = range(config.integer("num_hidden_layers"))
    return [layer not in dense and (layer + 1) % step == 0 for layer in layers]


def _spec(config: Config, layer: int, *, preset: str, norm: bool, shared: bool) -> LayerSpec:
    more: dict[str, Any] = renormalize(config, norm, {"renormalize": "sum"})
    if shared:
        more["shared_d_hidden"] = config.integer("shared_expert_intermediate_size")
    return with_sizes(
        preset,
        config,
        d_model=config.integer("hidden_size"),
        num_experts=config.integer("num_experts", "num_local_experts"),
        k=config.integer("num_experts_per_tok"),
        d_hidden=config.integer("moe_intermediate_size"),
        activation=config.activation("hidden_act"),
        **more,
    )


def _architecture(model_type: str, **rule: Any) -> Architecture:
    return Architecture(
        model_types=(model_type,),
        spec=functools.partial(_spec, **rule),
        stacks=(Stack(moe=_moe, prefixes=("layers.{layer}.mlp.",)),),
        layout=Layout(
            router=("gate.weight",),
            experts=EXPERTS_PROJ,
            shared=(below("shared_expert.", PROJ),),
            shared_gate=("shared_expert_gate.weight",),
        ),
    )


# `norm` is what transformers assumes where config.json does not say `norm_topk_prob`.
ARCHITECTURES = (
    _architecture("qwen2_moe", preset="qwen2-57b-a14b", norm=False, shared=True),
    _architecture("qwen3_moe", preset="qwen3-30b-a3b", norm=False, shared=False),
    _architecture("qwen3_next", preset="qwen3-next", norm=True, shared=True),
)
