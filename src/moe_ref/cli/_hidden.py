"""Hidden states: read from a file, or drawn."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moe_ref._counted import counted
from moe_ref.cli._guard import WrongUseError

CHUNK = 4096


@dataclasses.dataclass(frozen=True)
class Hidden:
    """Hidden states of many tokens, a chunk at a time.

    Attributes:
        tokens: how many.
        what: where they come from, for a reader.
        array: the states [tokens, d_model], memory-mapped; None: drawn from `seed`.
        d_model: width.
        seed: of the random numbers.
    """

    tokens: int
    what: str
    d_model: int
    array: np.ndarray | None = None
    seed: int = 0

    @property
    def counted(self) -> str:
        """How many there are, for a reader."""
        return counted(self.tokens, "token", ",")

    def chunks(self, dtype: np.dtype) -> Iterator[np.ndarray]:
        """Consecutive rows in `dtype`, at most 4096 at once.

        Raises:
            WrongUseError: a value that is not finite.
        """
        random = np.random.default_rng(self.seed)
        for start in range(0, self.tokens, CHUNK):
            stop = min(start + CHUNK, self.tokens)
            if self.array is None:
                rows = random.standard_normal((stop - start, self.d_model), np.float32)
            else:
                rows = np.asarray(self.array[start:stop])
            with np.errstate(over="ignore"):
                converted = rows.astype(dtype)
            finite = np.isfinite(converted)
            if not finite.all():
                token, column = np.argwhere(~finite)[0]
                raise WrongUseError(
                    f"{self.what}: values must be finite in {dtype}; got {rows[token, column]} "
                    f"at token {start + token}, column {column}."
                )
            yield converted


def drawn(*, tokens: int, d_model: int, seed: int) -> Hidden:
    """Standard normal hidden states."""
    return Hidden(tokens, f"random normal, seed {seed}", d_model, seed=seed)


def read(path: Path, *, d_model: int) -> Hidden:
    """Hidden states of a .npy file, leading axes flattened.

    Args:
        path: the file; an array [..., d_model] of a floating-point dtype. Pickles are refused.
        d_model: width of the layer.

    Returns:
        The states.

    Raises:
        WrongUseError: no such file, no such array.
    """
    try:
        array = _load(path)
    except OSError as error:
        raise WrongUseError(f"{path}: must be a readable file; {error.strerror}.") from error
    if array.dtype.kind != "f":
        raise WrongUseError(
            f"{path}: must hold float16, float32 or float64 numbers; got dtype {array.dtype}."
        )
    if array.ndim == 0 or array.shape[-1] != d_model:
        raise WrongUseError(
            f"{path}: the last axis must be d_model={d_model}; got shape {array.shape}."
        )
    rows = array.reshape(-1, d_model)
    if not len(rows):
        raise WrongUseError(f"{path}: must hold at least one token; got shape {array.shape}.")
    return Hidden(len(rows), str(path), d_model, rows)


def _load(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        magic = file.read(6)
    if magic != b"\x93NUMPY":
        raise WrongUseError(f"{path}: must be a .npy file, as numpy.save writes it; it is not.")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise WrongUseError(
            f"{path}: must be a complete .npy file without pickled objects; {reason}."
        ) from error
