"""A small checkpoint of one dense layer and one layer of Qwen3-MoE."""

import json

import numpy as np
from safetensors.numpy import save_file

D_MODEL, D_HIDDEN, EXPERTS, K = 16, 6, 8, 2


def write_checkpoint(folder, *, experts=EXPERTS, router=None, dtype=np.float32):
    """Write it; the MoE layer is layer 1."""
    config = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "hidden_size": D_MODEL,
        "moe_intermediate_size": D_HIDDEN,
        "num_experts": experts,
        "num_experts_per_tok": K,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    }
    random = np.random.default_rng(0)
    sizes = {"gate_proj": (D_HIDDEN, D_MODEL), "up_proj": (D_HIDDEN, D_MODEL)}
    sizes["down_proj"] = (D_MODEL, D_HIDDEN)
    block = "model.layers.1.mlp."
    tensors = {
        f"{block}experts.{e}.{name}.weight": random.standard_normal(shape).astype(dtype)
        for e in range(experts)
        for name, shape in sizes.items()
    }
    if router is None:
        router = random.standard_normal((experts, D_MODEL))
    tensors[f"{block}gate.weight"] = router.astype(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder
