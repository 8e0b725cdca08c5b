"""The safetensors files of a folder: names, shapes, dtypes, and one tensor at a time."""

import contextlib
import json
from pathlib import Path

import ml_dtypes  # noqa: F401  (gives NumPy the dtypes that safetensors asks it for)
import numpy as np
from safetensors import SafetensorError, safe_open

from moe_ref.models._errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_UNSAFE = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf")


class Checkpoint(contextlib.ExitStack):
    """Tensors of a folder. Files are memory-mapped; only what is read is copied.

    Args:
        folder: holds model.safetensors, or model.safetensors.index.json and its shards.

    Raises:
        CheckpointError: no such file, or one that is no safetensors file or index.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self._open: dict[Path, safe_open] = {}
        if (folder / SINGLE).exists():
            path = folder / SINGLE
            self._files = dict.fromkeys(self._handle(path).keys(), path)
        elif (folder / INDEX).exists():
            self._files = _read_index(folder)
        else:
            others = sorted(path.name for pattern in _UNSAFE for path in folder.glob(pattern))
            found = f"found {others[0]}, which is never read" if others else "found neither"
            raise CheckpointError(f"{folder}: must hold {SINGLE} or {INDEX}; {found}.")

    def names(self) -> tuple[str, ...]:
        """All tensor names."""
        return tuple(self._files)

    def file(self, name: str) -> Path:
        """The file that holds the tensor."""
        return self._files[name]

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of a tensor, as in the file's header."""
        path = self._files[name]
        handle = self._handle(path)
        try:
            header = handle.get_slice(name)
            return tuple(header.get_shape()), header.get_dtype()
        except SafetensorError:
            raise CheckpointError(
                f"{path}: `{name}` must be there, {INDEX} says so; not found."
            ) from None

    def unlisted(self, prefix: str) -> list[str]:
        """Tensors below `prefix` in the files opened so far that the index does not list."""
        stored = (name for handle in self._open.values() for name in handle.keys())  # noqa: SIM118
        return sorted(n for n in stored if n.startswith(prefix) and n not in self._files)

    def read(self, name: str) -> np.ndarray:
        """The tensor, in its own dtype."""
        path = self._files[name]
        try:
            return self._handle(path).get_tensor(name)
        except (SafetensorError, OSError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: `{name}` must be readable; {_line(error)}.") from None

    def _handle(self, path: Path) -> safe_open:
        if path not in self._open:
            try:
                self._open[path] = self.enter_context(safe_open(path, framework="numpy"))
            except (SafetensorError, OSError, ValueError) as error:
                raise CheckpointError(
                    f"{path}: must be a complete safetensors file; {_line(error)}."
                ) from None
        return self._open[path]


def _read_index(folder: Path) -> dict[str, Path]:
    path = folder / INDEX
    try:
        table = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        entries = dict(table)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f'{path}: must hold {{"weight_map": {{tensor: file}}}}; {_line(error)}.'
        ) from None
    for name, file in entries.items():
        if not isinstance(file, str) or file in ("", "..") or Path(file).name != file:
            raise CheckpointError(
                f"{path}: the file of `{name}` must be a name inside the folder; got {file!r}."
            )
    # Shards that the layer does not need may be absent; the others are missed when opened.
    return {name: folder / file for name, file in entries.items()}


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
