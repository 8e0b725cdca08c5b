"""Put given arrays into a module, by name."""

from collections.abc import Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

M = TypeVar("M", bound=eqx.Module)


def assemble(like: M, arrays: Mapping[str, Any]) -> M:
    """Replace every leaf of `like` by the array of the same name.

    Args:
        like: a module whose leaves have shapes (arrays or `jax.ShapeDtypeStruct`).
        arrays: nested mapping; None, or no entry, where the module has none.

    Returns:
        The module with the arrays, in their own dtypes.

    Raises:
        ValueError: a parameter is missing, unknown or of the wrong shape, by name.
    """
    given = dict(_flatten(arrays, ""))
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path).lstrip(".")
        if name not in given:
            raise ValueError(f"`{name}` must be given, of shape {leaf.shape}; it is missing.")
        array = jnp.asarray(given.pop(name))
        if array.shape != leaf.shape:
            raise ValueError(f"`{name}` must be of shape {leaf.shape}; got {array.shape}.")
        if jnp.issubdtype(array.dtype, jnp.floating) != jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"`{name}` must be of a kind with {leaf.dtype}; got {array.dtype}.")
        leaves.append(array)
    if given:
        raise ValueError(
            f"`{next(iter(given))}` must not be given: the layer has no such parameter."
        )
    return jax.tree_util.tree_unflatten(structure, leaves)


def _flatten(arrays: Mapping[str, Any], prefix: str):
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value
