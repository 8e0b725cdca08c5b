"""From a folder to a layer."""

import os

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from moe_ref._errors import require
from moe_ref.layers import MoE
from moe_ref.models._read import read_layer


def load_layer(
    folder: str | os.PathLike, *, layer: int | str, dtype: DTypeLike | None = None
) -> MoE:
    """Load one MoE block of a Hugging Face checkpoint.

    Args:
        folder: holds config.json and model.safetensors, or model.safetensors.index.json and at
            least the shards of this layer. Only the tensors of this layer are copied from disk.
        layer: number of the layer; "decoder.1" in an encoder-decoder, where an integer means the
            encoder.
        dtype: dtype of the parameters; None keeps the stored ones. The router weight is never
            narrower than `spec.router.param_dtype`, the selection bias never narrower than float32.

    Returns:
        The layer; every parameter was read, none is left random.

    Raises:
        CheckpointError: see `read_layer`.
        ValueError: `dtype` is no float dtype, or float64 while `jax_enable_x64` is off.

    Example:
        ```python
        import json
        import pathlib
        import tempfile

        import numpy as np
        from safetensors.numpy import save_file

        from moe_ref import models

        folder = pathlib.Path(tempfile.mkdtemp())
        config = {
            "model_type": "granitemoe",
            "num_hidden_layers": 1,
            "hidden_size": 4,
            "intermediate_size": 3,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        }
        (folder / "config.json").write_text(json.dumps(config))
        block = "model.layers.0.block_sparse_moe."
        tensors = {
            "router.layer.weight": np.ones((2, 4), np.float32),
            "input_linear.weight": np.ones((2, 6, 4), np.float32),
            "output_linear.weight": np.ones((2, 4, 3), np.float32),
        }
        save_file({block + name: t for name, t in tensors.items()}, folder / "model.safetensors")
        layer = models.load_layer(folder, layer=0)
        assert layer.experts.w_in.shape == (2, 4, 6)
        ```
    """
    spec, arrays = read_layer(folder, layer=layer, dtype=dtype)
    wide = arrays["experts"]["w_in"].dtype == jnp.float64
    require(
        jax.config.read("jax_enable_x64") or not wide,
        "dtype",
        "float32 or narrower while jax_enable_x64 is off",
        "float64",
    )
    return MoE.from_arrays(spec, arrays)
