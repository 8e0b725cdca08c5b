"""From a folder to a spec and arrays."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from moe_ref._numerics import float_dtype
from moe_ref.models._block import INTEGERS, Block
from moe_ref.models._checkpoint import Checkpoint
from moe_ref.models._config import Config
from moe_ref.models._errors import CheckpointError
from moe_ref.models._layout import ExpertLayout, Layout, Names
from moe_ref.models.families import ARCHITECTURES
from moe_ref.spec import LayerSpec

Parameters = dict[str, Any]


def spec_from_config(config: Mapping[str, Any], layer: int | str) -> LayerSpec:
    """The layer that a Hugging Face configuration describes.

    Args:
        config: content of a config.json; a model inside `text_config` is found.
        layer: number of the layer; "decoder.1" in an encoder-decoder, where an integer means the
            encoder.

    Returns:
        Its spec. Rules that the configuration leaves open are those of transformers 5.24.0; sizes
        must be given.

    Raises:
        CheckpointError: an unknown model type, a dense or missing layer, a missing size, or a
            setting that no spec describes.

    Example:
        ```python
        from moe_ref import models

        config = {
            "model_type": "mixtral",
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 20,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        }
        assert models.spec_from_config(config, 1).router.num_experts == 8
        ```
    """
    return _understand(Config(config), layer)[2]


def read_spec(folder: str | os.PathLike, *, layer: int | str) -> LayerSpec:
    """The layer that the config.json of a folder describes; see `spec_from_config`.

    Args:
        folder: of a checkpoint.
        layer: number of the layer, or "decoder.1".

    Returns:
        Its spec.

    Raises:
        CheckpointError: as `spec_from_config`, and where config.json is missing or no JSON.
    """
    return _understand(Config.read(_folder(folder)), layer)[2]


def read_layer(
    folder: str | os.PathLike, *, layer: int | str, dtype: DTypeLike | None = None
) -> tuple[LayerSpec, Parameters]:
    """Read one MoE block of a Hugging Face checkpoint as NumPy arrays.

    Args:
        folder: holds config.json and model.safetensors, or model.safetensors.index.json and at
            least the shards of this layer. Only the tensors of this layer are copied from disk.
        layer: number of the layer; "decoder.1" in an encoder-decoder, where an integer means the
            encoder.
        dtype: dtype of the arrays; None keeps the stored ones. The router weight is never narrower
            than `spec.router.param_dtype`, the selection bias never narrower than float32.

    Returns:
        The spec, and the arrays nested as the attributes of `layers.MoE`; None where the layer has
        no such parameter.

    Raises:
        CheckpointError: a file, tensor or key that is missing, unreadable, quantised or not as the
            configuration says; a tensor of the block that nothing would read; a dense layer; an
            unknown model type.
        ValueError: `dtype` is no float dtype.

    Special cases:
        Pickles (pytorch_model.bin) are never read. Layouts follow from the model type, never from
        shapes, so a square weight cannot be transposed by mistake.
    """
    name = None if dtype is None else float_dtype(dtype).name
    path = _folder(folder)
    layout, prefixes, spec = _understand(Config.read(path), layer)
    with Checkpoint(path) as checkpoint:
        block = Block(checkpoint, prefixes, dtype=name)
        arrays = _arrays(block, layout, spec)
        block.finish(layout.ignored)
    return spec, arrays


def _folder(folder: str | os.PathLike) -> Path:
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"{path}: must be a folder with a config.json; found none.")
    return path


def _understand(config: Config, layer: int | str) -> tuple[Layout, tuple[str, ...], LayerSpec]:
    if "text_config" in config:
        config = config.table("text_config")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(
            f"{config.where}: `model_type` must be one of {known}; got {model_type!r}."
        )
    architecture = ARCHITECTURES[model_type]
    stack, number = architecture.locate(config, layer)
    prefixes = tuple(prefix.format(layer=number) for prefix in stack.prefixes)
    return architecture.layout, prefixes, architecture.spec(config, number)


def _arrays(block: Block, layout: Layout, spec: LayerSpec) -> Parameters:
    router, d, latent = spec.router, spec.d_model, spec.d_latent
    choices, real = router.num_choices, router.num_experts
    # First of all: its shape refuses a wrong number of experts before anyone counts to it.
    weight = _one(block, layout.router, (choices, d), router.param_dtype)
    routed = _most_stored(block, layout.experts, real)
    return {
        "router": {
            "weight": weight,
            "bias": _one(block, layout.router_bias, (choices,), router.param_dtype)
            if router.router_bias
            else None,
            "selection_bias": _selection_bias(block, layout, choices)
            if router.selection_bias
            else None,
            "per_expert_scale": None,
            "table": _table(block, layout, spec) if router.hash_vocab else None,
        },
        "experts": routed.read(block, spec.experts, width=spec.d_expert, experts=real),
        "shared": _most_stored(block, layout.shared, None).read(
            block, spec.shared, width=d, experts=None
        )
        if spec.shared
        else None,
        "shared_gate": _one(block, layout.shared_gate, (1, d))[0] if spec.shared_gate else None,
        "latent_in": _one(block, layout.latent_in, (latent, d)).T if latent else None,
        "latent_out": _one(block, layout.latent_out, (d, latent)).T if latent else None,
        "output_bias": _one(block, layout.output_bias, (d,)) if spec.output_bias else None,
    }


def _one(
    block: Block, names: Names, shape: tuple[int, ...], at_least: str | None = None
) -> np.ndarray:
    return block.array(block.first(names), shape, at_least=at_least)


def _selection_bias(block: Block, layout: Layout, choices: int) -> np.ndarray:
    shape = (1, choices) if layout.selection_bias_row else (choices,)
    return _one(block, layout.selection_bias, shape, "float32").reshape(choices)


def _table(block: Block, layout: Layout, spec: LayerSpec) -> np.ndarray:
    name, router = block.first(layout.table), spec.router
    ids = block.read(name, (router.hash_vocab, router.k), kinds=INTEGERS)
    if ids.min() < 0 or ids.max() >= router.num_experts:
        block.refuse(name, f"hold ids in [0, {router.num_experts})", f"{ids.min()} to {ids.max()}")
    return ids.astype(np.int32)


def _most_stored(
    block: Block, layouts: tuple[ExpertLayout, ...], experts: int | None
) -> ExpertLayout:
    return max(layouts, key=lambda layout: block.count(layout.names(experts)))
