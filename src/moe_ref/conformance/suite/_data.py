"""Random inputs with named properties."""

import itertools
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from moe_ref.conformance._case import Case

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


def far_from_one(dtype: str, names: tuple[str, ...], make: Callable[[str], Case]) -> Iterator[Case]:
    """`make(label)` with one operand of another magnitude, and results with it."""
    exponent = 8 if dtype == "float16" else 60
    for name, power in itertools.product(names, (exponent, -exponent)):
        case = make(f"{name} 2^{power} times as large")
        case.arrays[name] *= np.asarray(2.0**power, case.arrays[name].dtype)
        yield case


def zipf_sizes(rng: np.random.Generator, *, experts: int, rows: int, s: float = 1.2) -> np.ndarray:
    """Group sizes with Zipf popularity: expert of rank r gets a share ~ r^-s, ranks shuffled."""
    share = np.arange(1, experts + 1) ** -s
    return rng.multinomial(rows, rng.permutation(share / share.sum())).astype(np.int32)


def one_expert_sizes(*, experts: int, rows: int, hot: int) -> np.ndarray:
    """All rows to expert `hot`."""
    sizes = np.zeros(experts, np.int32)
    sizes[hot] = rows
    return sizes


def with_odd_values(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """A copy with each kind of number that a kernel may be tempted to write another one over."""
    odd, limits = array.copy(), ml_dtypes.finfo(array.dtype)
    small, least = float(limits.smallest_subnormal), float(limits.smallest_normal)
    nan = np.copysign(np.nan, -1.0)
    values = [np.inf, -np.inf, -0.0, small, -3 * small, least - small, np.nan, nan]
    places = rng.permutation(array.size)[: 4 * len(values)]
    odd.reshape(-1)[places] = np.resize(values, len(places)).astype(array.dtype)
    return odd
