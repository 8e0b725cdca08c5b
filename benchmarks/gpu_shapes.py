"""Real sizes, and how skewed the rows fall."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Matmul:
    """[rows, k] x [experts, k, n] in bfloat16: one projection of a published layer."""

    name: str
    experts: int
    rows: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """On the rows there are, of each of the three products."""
        return 2 * self.rows * self.k * self.n

    @property
    def bytes(self) -> int:
        """Read and written at least by each of the three products: every array once."""
        return 2 * (self.rows * (self.k + self.n) + self.experts * self.k * self.n)


@dataclasses.dataclass(frozen=True)
class Layer:
    """A whole layer, router to combine, SwiGLU, softmax over all and then the top k."""

    name: str
    tokens: int
    d_model: int
    d_hidden: int
    experts: int
    k: int

    @property
    def flops(self) -> int:
        """Of the experts' matmuls, forward and backward."""
        return 18 * self.tokens * self.k * self.d_model * self.d_hidden

    @property
    def parameter_bytes(self) -> int:
        """Of the experts, in bfloat16."""
        return 6 * self.experts * self.d_model * self.d_hidden


MATMULS = (
    Matmul("mixtral", 8, 16384, 4096, 14336),
    Matmul("dsv3_ep8", 32, 32768, 7168, 2048),
    Matmul("dsv3_full", 256, 32768, 7168, 2048),
    Matmul("qwen3_30b", 128, 65536, 2048, 768),
)
LAYERS = (
    Layer("mixtral", 8192, 4096, 14336, 8, 2),
    Layer("qwen3_30b", 8192, 2048, 768, 128, 8),
    Layer("dsv3_e32", 4096, 7168, 2048, 32, 8),
    Layer("dsv3_e256", 4096, 7168, 2048, 256, 8),
)
SKEWS = {"uniform": 0.0, "zipf 1.2": 1.2}


def group_sizes(shape: Matmul, skew: str, seed: int = 0) -> np.ndarray:
    """Rows of each expert, under the skew of this name."""
    return zipf_sizes(shape.rows, shape.experts, SKEWS[skew], seed)


def zipf_sizes(rows: int, experts: int, power: float, seed: int = 0) -> np.ndarray:
    """Rows of each expert, whose chance falls as a power of its place in a random order."""
    rng = np.random.default_rng(seed)
    chance = np.arange(1, experts + 1) ** -power
    return rng.multinomial(rows, rng.permutation(chance / chance.sum())).astype(np.int32)
