"""What an exchange should cost: bytes that a routing plans, and those that the links counted."""

import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_shapes import Layer
from moe_ref.parallel import exchange_plan

# NVML's counters of data sent over NVLink, in KiB: all links of a device.
_SENT = 138


def planned(ids: np.ndarray, shape: Layer, ranks: int, dedup: bool) -> dict[str, float]:
    """Rows that leave a rank, and the bytes of a whole step of all ranks.

    A row goes out and its sum comes back, then its gradient goes out and that of the row comes
    back, all in bfloat16; ids and weights go with a row, the gradient of weights with its own.

    Args:
        ids: experts of all tokens.
        shape: of the layer.
        ranks: that share them.
        dedup: a token once for each rank.
    """
    plan = exchange_plan(jnp.asarray(ids).reshape(ranks, -1, shape.k), num_experts=shape.experts)
    sent = np.asarray(plan.rows_sent if dedup else plan.copies_sent)
    away = sent.sum() - np.trace(sent)
    slots = shape.k if dedup else 1
    row = 4 * 2 * shape.d_model + slots * (4 + 4 + 2)
    return {
        "rows sent per token": float(away / ids.shape[0]),
        "busiest rank gets": float(sent.sum(axis=0).max() / sent.sum(axis=0).mean()),
        "planned bytes sent": float(away) * row,
    }


def nvlink_bytes(gpus: int) -> float | None:
    """Bytes that the first GPUs have sent over NVLink since they started; None if nobody counts."""
    try:
        import pynvml

        pynvml.nvmlInit()
        total = 0
        for index in range(gpus):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            # The scope of this field is a link; all ones stands for all links.
            field = pynvml.nvmlDeviceGetFieldValues(handle, [(_SENT, 0xFFFFFFFF)])[0]
            if field.nvmlReturn:
                return None
            total += 1024 * field.value.ullVal
    except Exception:  # no such library, driver, or counter
        return None
    return float(total)
