"""`moe_ref.grouped.grouped_matmul` beside `jax.lax.ragged_dot`: value and both gradients.

Run alone with `python -m benchmarks grouped`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import interleaved
from moe_ref.grouped import grouped_matmul

TITLE = "Grouped matmul, value and both gradients, beside jax.lax.ragged_dot"


@dataclasses.dataclass(frozen=True)
class Case:
    """A grouped matmul [rows, k] x [experts, k, n] with random group sizes of equal mean."""

    experts: int
    rows: int
    k: int
    n: int

    def __str__(self):
        return f"E={self.experts}, [{self.rows}, {self.k}] x [{self.k}, {self.n}]"


CASES = (Case(8, 4096, 512, 512), Case(64, 4096, 256, 256), Case(256, 1024, 256, 256))


def with_gradients(matmul):
    """The function that is timed: the product and the gradient of each operand."""

    def run(x, w, group_sizes, cotangent):
        y, pull = jax.vjp(lambda x, w: matmul(x, w, group_sizes), x, w)
        return y, *pull(cotangent)

    return run


PEERS = {
    "moe_ref": with_gradients(grouped_matmul),
    "ragged_dot": with_gradients(
        lambda x, w, sizes: jax.lax.ragged_dot(x, w, sizes, precision=jax.lax.Precision.HIGHEST)
    ),
}


def operands(case: Case, seed: int = 0) -> tuple[jax.Array, ...]:
    """Normal x, w and cotangent, and sizes of groups that rows fall into with equal chance."""
    rng = np.random.default_rng(seed)
    sizes = rng.multinomial(case.rows, np.full(case.experts, 1 / case.experts))
    x = rng.standard_normal((case.rows, case.k), np.float32)
    w = rng.standard_normal((case.experts, case.k, case.n), np.float32) / np.sqrt(case.k)
    cotangent = rng.standard_normal((case.rows, case.n), np.float32)
    return tuple(map(jnp.asarray, (x, w.astype(np.float32), sizes.astype(np.int32), cotangent)))


def measure(case: Case, *, repeats: int = 5) -> dict:
    """One row of the table: times in ms, temporary memory in bytes, and how many times less."""
    arrays = operands(case)
    programs = {name: jax.jit(run).lower(*arrays).compile() for name, run in PEERS.items()}
    ms = interleaved(
        {
            name: lambda program=program: jax.block_until_ready(program(*arrays))
            for name, program in programs.items()
        },
        repeats=repeats,
    )
    temporary = {
        name: program.memory_analysis().temp_size_in_bytes for name, program in programs.items()
    }
    flops = 6 * case.rows * case.k * case.n
    return {
        "case": str(case),
        **{f"{name} ms": value for name, value in ms.items()},
        "times faster": ms["ragged_dot"] / ms["moe_ref"],
        **{f"{name} temporary MB": value / 2**20 for name, value in temporary.items()},
        "times less memory": temporary["ragged_dot"] / temporary["moe_ref"],
        "moe_ref GFLOP/s": flops / ms["moe_ref"] / 1e6,
    }


def rows() -> list[dict]:
    """The table."""
    return [measure(case) for case in CASES]
