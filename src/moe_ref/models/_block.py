"""The tensors of one MoE block, each read at most once and none forgotten."""

import difflib
import re
from collections.abc import Collection, Sequence

import jax.numpy as jnp
import numpy as np

from moe_ref.models._checkpoint import Checkpoint
from moe_ref.models._errors import CheckpointError

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
INTEGERS = ("I64", "I32")
_QUANTISED = re.compile(
    r"(_blocks|_scales?|_scale_2|scale_inv|\.scales?|qweight|qzeros|g_idx|_packed|absmax"
    r"|quant_map|quant_state\.\w+)$"
)
# Where checkpoints keep the stack of layers.
_ROOTS = (
    "model.",
    "",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "transformer.",
)


class Block:
    """What a checkpoint stores below one prefix.

    Args:
        checkpoint: an open checkpoint.
        prefixes: names the block may go by, below any of the roots.
        dtype: dtype to convert to; None keeps the stored one.

    Raises:
        CheckpointError: nothing, or more than one block, goes by these names, or its tensors are
            quantised.
    """

    def __init__(self, checkpoint: Checkpoint, prefixes: Sequence[str], *, dtype: str | None):
        self._checkpoint = checkpoint
        self._dtype = dtype
        everything = checkpoint.names()
        candidates = [root + prefix for root in _ROOTS for prefix in prefixes]
        found = [each for each in candidates if any(n.startswith(each) for n in everything)]
        if len(found) != 1:
            known = f"found {' and '.join(found)}" if found else closest(candidates[0], everything)
            raise CheckpointError(
                f"{checkpoint.folder}: tensors below `{candidates[0]}` (or the like) must be "
                f"there, in one place; {known}."
            )
        self._prefix = found[0]
        self._names = {n for n in everything if n.startswith(self._prefix)}
        self._unread = set(self._names)
        for name in sorted(self._names):
            _, stored = checkpoint.describe(name)
            if _QUANTISED.search(name) or stored not in (*FLOATS, *INTEGERS):
                raise CheckpointError(
                    f"{checkpoint.file(name)}: `{name}` must be of dtype {_either(FLOATS)}: "
                    f"quantised tensors are not supported; found {stored}."
                )

    def first(self, names: Sequence[str]) -> str:
        """The first of `names` that is stored, else the first."""
        return next((name for name in names if self._prefix + name in self._names), names[0])

    def count(self, names: Sequence[str]) -> int:
        """How many of `names` are stored."""
        return sum(self._prefix + name in self._names for name in names)

    def float_dtype(self, name: str) -> str:
        """Dtype of a stored tensor as the file spells it, if it is a float; else `F32`."""
        full = self._prefix + name
        stored = self._checkpoint.describe(full)[1] if full in self._names else "F32"
        return stored if stored in FLOATS else "F32"

    def target(self, stored: str, *, at_least: str | None = None) -> np.dtype:
        """Dtype that a tensor stored as `stored` is returned in, never narrower than `at_least`."""
        dtype = jnp.dtype(self._dtype or FLOATS[stored])
        minimum = jnp.dtype(at_least or dtype)
        return minimum if minimum.itemsize > dtype.itemsize else dtype

    def array(
        self, name: str, shape: tuple[int, ...], *, at_least: str | None = None
    ) -> np.ndarray:
        """A float tensor, converted.

        Args:
            name: below the prefix.
            shape: it must have.
            at_least: dtype it is never narrower than.

        Returns:
            The tensor.

        Raises:
            CheckpointError: missing, or of another shape, or no float.
        """
        tensor = self.read(name, shape)
        return tensor.astype(self.target(self.float_dtype(name), at_least=at_least), copy=False)

    def read(
        self, name: str, shape: tuple[int, ...], *, kinds: Collection[str] = tuple(FLOATS)
    ) -> np.ndarray:
        """A tensor as it is stored.

        Args:
            name: below the prefix.
            shape: it must have.
            kinds: dtypes it may have, as the file spells them.

        Returns:
            The tensor.

        Raises:
            CheckpointError: missing, or of another shape or dtype.
        """
        full = self._prefix + name
        if full not in self._names:
            raise CheckpointError(
                f"{self._checkpoint.folder}: `{full}` must be there, of shape {shape}; it is "
                f"missing, {closest(full, sorted(self._names))}."
            )
        file, (found, stored) = self._checkpoint.file(full), self._checkpoint.describe(full)
        if found != shape:
            raise CheckpointError(f"{file}: `{full}` must be of shape {shape}; found {found}.")
        if stored not in kinds:
            raise CheckpointError(
                f"{file}: `{full}` must be of dtype {_either(kinds)}; found {stored}."
            )
        self._unread.discard(full)
        return self._checkpoint.read(full)

    def refuse(self, name: str, requirement: str, found: object) -> None:
        """Raise for a tensor whose content is wrong."""
        full = self._prefix + name
        raise CheckpointError(
            f"{self._checkpoint.file(full)}: `{full}` must {requirement}; found {found}."
        )

    def finish(self, ignored: str | None) -> None:
        """Refuse tensors that nothing has read.

        Args:
            ignored: pattern of names that transformers reads and never uses.

        Raises:
            CheckpointError: there are some.
        """
        unlisted = self._checkpoint.unlisted(self._prefix)
        if unlisted:
            raise CheckpointError(
                f"{self._checkpoint.folder}: `{unlisted[0]}` must be listed in the index; it is "
                "stored, and not listed."
            )
        left = sorted(self._unread)
        if ignored is not None:
            short = len(self._prefix)
            left = [name for name in left if not re.fullmatch(ignored, name[short:])]
        if left:
            more = f", and {len(left) - 1} more" if len(left) > 1 else ""
            raise CheckpointError(
                f"{self._checkpoint.file(left[0])}: `{left[0]}` must not be there: the "
                f"configuration describes no such parameter; found it{more}."
            )


def closest(name: str, names: Sequence[str]) -> str:
    """What to say about a name that is not among `names`."""
    close = difflib.get_close_matches(name, names[:5000], n=1, cutoff=0.0)
    return f"the closest name is `{close[0]}`" if close else "there are no tensors"


def _either(words: Collection[str]) -> str:
    return " or ".join(words)
