"""How arrays reach a kernel, come back, and are differentiated: JAX, NumPy, torch."""

import contextlib
import importlib
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from moe_ref.conformance._case import Case, leaves
from moe_ref.layers import MoE

Tree = dict[str, Any]


class Library:
    """NumPy, and what the other libraries do differently."""

    name = "numpy"

    def give(self, array: np.ndarray, manner: str = "alone") -> Any:
        """An array of this library, which lies in memory as the manner of a `Case` says."""
        whole, view = laid_out(array, manner)
        whole = whole.copy()
        return whole if view is None else view(whole)

    def is_gone(self, array: Any) -> bool:
        """Whether the memory of an input was given away."""
        return False

    def take(self, array: Any) -> np.ndarray:
        """A result as a NumPy array, whichever library it is of."""
        return as_numpy(array)

    def layer(self, arrays: Tree, spec: Any) -> Any:
        """Parameters of a layer: attributes as those of `layers.MoE`, and `spec`."""
        made = {n: _namespace(v) if isinstance(v, dict) else v for n, v in arrays.items()}
        absent = dict.fromkeys(("shared", "shared_gate", "latent_in", "latent_out", "output_bias"))
        return types.SimpleNamespace(**(absent | made), spec=spec)

    def repeat(self, values: Any, counts: Any, total: int, rest: float) -> Any:
        """Each value as often as it counts, then `rest`: `total` in all."""
        repeated = np.full(total, rest, np.asarray(values).dtype)
        counted = np.repeat(np.asarray(values), np.asarray(counts).astype(np.int64))[:total]
        repeated[: len(counted)] = counted
        return repeated

    def stack(self, numbers: list[Any]) -> Any:
        """Scalars as one vector."""
        return np.stack([np.asarray(number) for number in numbers])

    def context(self, case: Case) -> contextlib.AbstractContextManager:
        """What has to hold around the call."""
        return contextlib.nullcontext()

    def finish(self, results: Any) -> Any:
        """Wait for results that are still being computed."""
        return results

    def pull(
        self, run: Callable[[Tree], Tree], moving: Tree, main: str
    ) -> tuple[Tree, Callable[[Any], Tree]]:
        """Results, and what gives the gradients of the moving inputs for a cotangent."""
        raise NotImplementedError("NumPy has no gradients: give `vjp=` with the kernel")


class _Jax(Library):
    name = "jax"

    def give(self, array, manner="alone"):
        return jnp.array(array)  # a copy: a kernel may write where it must not

    def is_gone(self, array):
        return array.is_deleted()

    def layer(self, arrays, spec):
        return MoE.from_arrays(spec, arrays)

    def repeat(self, values, counts, total, rest):
        padded = jnp.append(values, jnp.asarray(rest, values.dtype))
        left = total - jnp.sum(counts)
        return jnp.repeat(padded, jnp.append(counts, left), total_repeat_length=total)

    def stack(self, numbers):
        return jnp.stack(numbers)

    def context(self, case):
        # 64-bit types only for inputs that have them: kernels may depend on the default.
        return jax.enable_x64(any(a.dtype.itemsize == 8 for a in leaves(case.arrays).values()))

    def finish(self, results):
        return jax.block_until_ready(results)

    def pull(self, run, moving, main):
        results, pull = jax.vjp(run, moving)
        cotangents = {name: _zero_cotangent(result) for name, result in results.items()}
        kind = results[main].dtype
        return results, lambda given: pull(cotangents | {main: given.astype(kind)})[0]


class _Torch(Library):
    name = "torch"

    def __init__(self):
        try:
            self.torch: Any = importlib.import_module("torch")
        except ImportError:
            raise NotImplementedError(
                "arrays='torch' needs torch, which is not installed"
            ) from None
        self.device = "cuda" if self.torch.cuda.is_available() else "cpu"

    def give(self, array, manner="alone"):
        whole, view = laid_out(array, manner)
        if array.dtype.name == "bfloat16":
            given = self._dense(whole.view(np.int16)).view(self.torch.bfloat16)
        else:
            # Torch sums none of these.
            wide = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
            given = self._dense(whole.astype(wide.get(array.dtype.name, array.dtype)))
        return given if view is None else view(given)

    def _dense(self, array):
        # NumPy gives empty arrays strides of 0, which torch's kernels take for broadcast ones.
        whole = self.torch.empty(array.shape, dtype=self.torch.from_numpy(array).dtype)
        whole.copy_(self.torch.from_numpy(array))
        return whole.to(self.device)

    def repeat(self, values, counts, total, rest):
        repeated = self.torch.full((total,), rest, dtype=values.dtype, device=values.device)
        counted = self.torch.repeat_interleave(values, counts.to(values.device))[:total]
        repeated[: len(counted)] = counted
        return repeated

    def stack(self, numbers):
        return self.torch.stack(list(numbers))

    def pull(self, run, moving, main):
        leaves_ = {name: tensor.detach().requires_grad_() for name, tensor in moving.items()}
        results = run(leaves_)

        def back(cotangent):
            given = cotangent.to(results[main].dtype)
            inputs = list(leaves_.values())
            found = self.torch.autograd.grad(results[main], inputs, given, allow_unused=True)
            return {
                name: self.torch.zeros_like(leaf) if gradient is None else gradient
                for (name, leaf), gradient in zip(leaves_.items(), found, strict=True)
            }

        return results, back


def laid_out(array: np.ndarray, manner: str) -> tuple[np.ndarray, Callable[[Any], Any] | None]:
    """A dense array that holds the numbers, and the view of it that is the array asked for."""
    if manner == "transposed" and array.ndim > 1:
        return np.ascontiguousarray(array.swapaxes(-1, -2)), lambda a: a.swapaxes(-1, -2)
    if manner == "spaced" and array.ndim > 0:
        # Each number comes twice, the second time as that of a neighbour.
        between = np.roll(array, 1, axis=-1) if array.shape[-1] > 1 else np.ones_like(array)
        whole = np.stack([array, between], axis=-1).reshape(*array.shape[:-1], 2 * array.shape[-1])
        return whole, lambda a: a[..., ::2]
    if manner == "expanded" and array.size > 1 and (array == array.reshape(-1)[0]).all():
        # Other numbers follow, for those who read them.
        whole = np.arange(array.size, dtype=np.float64).reshape(array.shape).astype(array.dtype)
        whole.reshape(-1)[0] = array.reshape(-1)[0]
        return whole, lambda a: _expanded(a.reshape(-1)[:1], array.shape)
    return array, None


_KINDS: dict[str, type[Library]] = {"jax": _Jax, "numpy": Library, "torch": _Torch}
LIBRARIES = tuple(_KINDS)


def library(name: str) -> Library:
    """The library called `name`, one of `LIBRARIES`."""
    return _KINDS[name]()


def _expanded(array: Any, shape: tuple[int, ...]) -> Any:
    return array.expand(shape) if hasattr(array, "expand") else np.broadcast_to(array, shape)


def as_numpy(array: Any) -> np.ndarray:
    """An array of any library as NumPy's, torch's narrow ones as bytes; else as NumPy sees it."""
    if hasattr(array, "detach"):  # torch
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":
            torch: Any = importlib.import_module("torch")
            return array.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        if str(array.dtype).startswith(("torch.float8", "torch.float4")):
            return array.contiguous().view(importlib.import_module("torch").uint8).numpy()
        return array.resolve_neg().numpy()
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        return np.from_dlpack(array)
    return np.asarray(array)


def _namespace(arrays: Tree) -> Any:
    absent = dict.fromkeys(("bias", "selection_bias", "per_expert_scale", "table", "b_in", "b_out"))
    return types.SimpleNamespace(**(absent | arrays))


def _zero_cotangent(result: Any) -> Any:
    if jnp.issubdtype(result.dtype, jnp.floating):
        return jnp.zeros(result.shape, result.dtype)
    return np.zeros(result.shape, jax.dtypes.float0)
