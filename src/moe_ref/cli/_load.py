"""How a router spreads tokens over experts."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from moe_ref.cli._console import progress_bar
from moe_ref.cli._hidden import CHUNK, Hidden
from moe_ref.layers import MoE


@dataclasses.dataclass(frozen=True)
class Load:
    """Slots of each expert, identity experts last, and what follows from them.

    Attributes:
        counts: slots of each expert, before dropping.
        capacity: slots an expert accepts; None: all.
        real: number of experts with parameters; the others drop nothing.
    """

    counts: tuple[int, ...]
    capacity: int | None
    real: int

    def statistics(self) -> dict[str, Any]:
        """Utilisation, over all experts."""
        mean = sum(self.counts) / len(self.counts)
        dropped = 0
        if self.capacity is not None:
            dropped = sum(max(n - self.capacity, 0) for n in self.counts[: self.real])
        return {
            "slots": sum(self.counts),
            "mean": mean,
            "max": max(self.counts),
            "min": min(self.counts),
            "max_over_mean": max(self.counts) / mean if mean else None,
            "idle": sum(n == 0 for n in self.counts),
            "capacity": self.capacity,
            "dropped": dropped,
        }


def measure_load(layer: MoE, hidden: Hidden, *, seed: int) -> Load:
    """Route tokens; no expert is run.

    Args:
        layer: of which only the router is used.
        hidden: what it reads.
        seed: of the token ids, drawn uniformly, where the router hashes them.

    Returns:
        The `Load`.
    """
    spec, router = layer.spec, layer.router
    dtype = layer.experts.w_in.dtype
    random = np.random.default_rng([seed, 1])
    choose = eqx.filter_jit(lambda router, x, ids: router(x, token_ids=ids).experts)
    counts = np.zeros(spec.router.num_choices, np.int64)
    with progress_bar() as progress:
        chunks = progress.track(
            hidden.chunks(np.dtype(dtype)), total=-(-hidden.tokens // CHUNK), description="routing"
        )
        for rows in chunks:
            ids = None
            if spec.router.hash_vocab:
                ids = jnp.asarray(random.integers(spec.router.hash_vocab, size=len(rows)), "int32")
            experts = np.asarray(choose(router, jnp.asarray(rows), ids)).reshape(-1)
            counts += np.bincount(experts[experts >= 0], minlength=len(counts))
    real, capacity = spec.router.num_experts, None
    if spec.capacity is not None:
        capacity = spec.capacity.slots(tokens=hidden.tokens, k=spec.router.k, num_experts=real)
    return Load(tuple(int(n) for n in counts), capacity, real)
