"""Random inputs with named properties."""

import ml_dtypes
import numpy as np

_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def dtype_of(name: str) -> np.dtype:
    """The dtype called `name`, bfloat16 among them."""
    return _DTYPES.get(name) or np.dtype(name)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0):
    """Standard normal values times `scale`, rounded to `dtype`."""
    return (scale * rng.standard_normal(shape)).astype(_DTYPES[dtype])


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str):
    """Integers in [-3, 3]: their short sums are exact in every dtype and order."""
    return rng.integers(-3, 4, shape).astype(_DTYPES[dtype])


def zipf_sizes(rng: np.random.Generator, *, experts: int, rows: int, s: float = 1.2) -> np.ndarray:
    """Group sizes with Zipf popularity: expert of rank r gets a share ~ r^-s, ranks shuffled."""
    share = np.arange(1, experts + 1) ** -s
    return rng.multinomial(rows, rng.permutation(share / share.sum())).astype(np.int32)


def one_expert_sizes(*, experts: int, rows: int, hot: int) -> np.ndarray:
    """All rows to expert `hot`."""
    sizes = np.zeros(experts, np.int32)
    sizes[hot] = rows
    return sizes
