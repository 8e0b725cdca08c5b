"""What an exchange should cost: routings, the bytes they plan, and those that the links counted."""

import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_shapes import Layer
from moe_ref.parallel import exchange_plan

# NVML's counters of data sent over NVLink, in KiB: all links of a device.
_SENT = 138


def ids_of(routing: str, shape: Layer, tokens: int, ranks: int, seed: int = 0) -> np.ndarray:
    """Distinct experts of each token.

    Args:
        routing: `uniform`; `zipf`: chances fall as the power 1.2 of an expert's place in a random
            order; `groups`: in 4 of 8 groups of experts, as DeepSeek-V3 chooses them, uniform
            inside; `one rank`: all of them of the first rank.
        shape: of the layer.
        tokens: of all ranks.
        ranks: that share the experts.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    score = rng.gumbel(size=(tokens, shape.experts)).astype(np.float32)
    if routing == "zipf":
        score -= 1.2 * np.log(rng.permutation(shape.experts) + 1)
    elif routing == "groups":
        rank = rng.random((tokens, 8)).argsort(axis=1)
        score -= 1e9 * np.repeat(rank >= 4, shape.experts // 8, axis=1)
    elif routing == "one rank":
        score[:, shape.experts // ranks :] = -1e9
    return np.argpartition(-score, shape.k - 1, axis=1)[:, : shape.k].astype(np.int32)


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
