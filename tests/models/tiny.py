"""Checkpoints small enough to write by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from moe_ref.models import CheckpointError, read_layer

D, F, E = 4, 3, 2
PREFIX = "model.layers.0.block_sparse_moe."
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "num_hidden_layers": 1,
    "hidden_size": D,
    "intermediate_size": F,
    "num_local_experts": E,
    "num_experts_per_tok": 1,
}
SHAPES = {"w1": (F, D), "w2": (D, F), "w3": (F, D)}


def numbers(*shape: int, start: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Distinct numbers, so that nothing misplaced goes unseen."""
    return (np.arange(np.prod(shape)) + start).reshape(shape).astype(dtype)


def mixtral(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """The tensors of the block that `MIXTRAL` describes."""
    tensors = {PREFIX + "gate.weight": numbers(E, D, start=1, dtype=dtype)}
    for e in range(E):
        for i, (name, shape) in enumerate(SHAPES.items()):
            start = 100 * e + 20 * i
            tensors[f"{PREFIX}experts.{e}.{name}.weight"] = numbers(
                *shape, start=start, dtype=dtype
            )
    return tensors


def write(folder: Path, config: Any, *files: dict[str, np.ndarray]) -> Path:
    """Write config.json and one model.safetensors, or shards and their index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if len(files) == 1:
        save_file(files[0], folder / "model.safetensors")
    elif files:
        shards = {f"model-{i}.safetensors": tensors for i, tensors in enumerate(files)}
        for name, tensors in shards.items():
            save_file(tensors, folder / name)
        write_index(folder, {t: name for name, tensors in shards.items() for t in tensors})
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    """Write the index of sharded files."""
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def refuses(folder, *parts: str, layer=0, **how) -> str:
    """Reading fails with a one-line message that holds all `parts`."""
    with pytest.raises(CheckpointError) as caught:
        read_layer(folder, layer=layer, **how)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    for part in parts:
        assert part in message, message
    return message


def changed(name: str, tensor: np.ndarray | None) -> dict[str, np.ndarray]:
    """The valid tensors, with one replaced or removed."""
    tensors = mixtral() | ({} if tensor is None else {PREFIX + name: tensor})
    if tensor is None:
        del tensors[PREFIX + name]
    return tensors
