"""Recorded MoE blocks: what transformers computed with the checkpoints in tests/goldens."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (bfloat16 in safetensors)
import numpy as np
from safetensors.numpy import load_file, save_file

from moe_ref import oracle
from moe_ref.models import read_layer
from moe_ref.models.families import ARCHITECTURES
from moe_ref.spec import LayerSpec, Numerics

FOLDER = Path(__file__).parents[1] / "goldens"
EXACT = "float64_nodowncast"  # every stage in float64


@dataclasses.dataclass(frozen=True)
class Golden:
    """One recorded block.

    Args:
        name: folder below tests/goldens.
        prefix: of its tensors in moe_io.safetensors.
    """

    name: str
    prefix: str

    def __str__(self):
        return f"{self.name}-{self.prefix}"

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def layer(self) -> int | str:
        """What `load_layer` calls it."""
        stack, _, number = self.prefix.rpartition("layer")
        return f"{stack.strip('_')}.{number}" if stack else int(number)

    @property
    def module(self) -> str:
        """Path of the block in the transformers model."""
        blocks = _manifest(self.name)["blocks"]
        return next(b["module_path"] for b in blocks if b["key_prefix"] == self.prefix)

    def tensors(self, tag: str) -> dict[str, np.ndarray]:
        """Everything recorded under a dtype tag."""
        start = f"{self.prefix}.{tag}."
        every = _tensors(self.name)
        return {k.removeprefix(start): v for k, v in every.items() if k.startswith(start)}

    def token_ids(self) -> np.ndarray:
        """Vocabulary ids of the tokens, [sequences, length]."""
        return _tensors(self.name)["model.input_ids"]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer: a batch, or a single sequence where capacity counts in sequences.

    Args:
        x: [tokens, d_model].
        token_ids: [tokens], for a layer that hashes them, else None.
        recorded: what transformers computed for these tokens, [tokens, ...].
    """

    x: np.ndarray
    token_ids: np.ndarray | None
    recorded: dict[str, np.ndarray]


def calls(golden: Golden, spec: LayerSpec, tag: str) -> list[Call]:
    """The calls that a recording consists of."""
    every = golden.tensors(tag)
    sequences, length, width = every["input"].shape
    tokens = sequences * length
    flat = every["input"].reshape(tokens, width)
    rows = {k: v.reshape(tokens, -1) for k, v in every.items() if not k.startswith("grad.")}
    ids = golden.token_ids().reshape(-1) if spec.router.hash_vocab else None
    size = tokens if spec.capacity is None else length
    parts = [slice(start, start + size) for start in range(0, tokens, size)]
    return [
        Call(
            flat[part],
            None if ids is None else ids[part],
            {name: array[part] for name, array in rows.items()},
        )
        for part in parts
    ]


def recorded_gradients(golden: Golden, spec: LayerSpec, folder: Path) -> dict[str, Any]:
    """Gradients in moe_ref's layout: written as a checkpoint, and read as one.

    They have the names and shapes of the parameters in the transformers module. What has no
    gradient (selection bias, hash table) is written as zeros.
    """
    grads = {
        name.removeprefix("grad."): array
        for name, array in golden.tensors(EXACT).items()
        if name.startswith("grad.")
    }
    layout = ARCHITECTURES[_manifest(golden.name)["model_type"]].layout
    router = spec.router
    if router.selection_bias:
        shape = (1, router.num_choices) if layout.selection_bias_row else (router.num_choices,)
        grads[layout.selection_bias[-1]] = np.zeros(shape)
    if router.hash_vocab:
        grads[layout.table[-1]] = np.zeros((router.hash_vocab, router.k), np.int64)
    if router.zero_experts:
        # The module gives identity experts a first projection; nothing reads it.
        fused, down = grads.pop("experts.gate_up_proj"), grads.pop("experts.down_proj")
        assert not fused[router.num_experts :].any()
        for e in range(router.num_experts):
            gate, up = np.split(fused[e], 2)
            parts = {"gate_proj": gate, "up_proj": up, "down_proj": down[e]}
            grads |= {f"experts.{e}.{k}.weight": v for k, v in parts.items()}
    shutil.copy(golden.folder / "config.json", folder)
    tensors = {f"{golden.module}.{k}": np.ascontiguousarray(v) for k, v in grads.items()}
    save_file(tensors, folder / "model.safetensors")
    return read_layer(folder, layer=golden.layer)[1]


def transformers_numerics(spec: LayerSpec, dtype: str) -> Numerics:
    """What transformers does in eager mode: every module rounds its result to the model's dtype.

    Matmuls accumulate in float32 (float64 for float64); experts are added up one by one, each sum
    rounded to the model's dtype.
    """
    return dataclasses.replace(
        oracle.numerics_for(spec, dtype),
        pre_activation=dtype,
        activation=dtype,
        expert_output=dtype,
        combine=dtype,
        shared_gate=dtype,
    )


@functools.cache
def _manifest(name: str) -> dict:
    return json.loads((FOLDER / name / "manifest.json").read_text())


@functools.cache
def _tensors(name: str) -> dict[str, np.ndarray]:
    return load_file(FOLDER / name / "moe_io.safetensors")


GOLDENS = [
    Golden(folder.name, block["key_prefix"])
    for folder in sorted(FOLDER.iterdir())
    if folder.is_dir()
    for block in _manifest(folder.name)["blocks"]
]
