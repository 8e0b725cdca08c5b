"""Which GPU arrays go to, and code that runs on such a one alone."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from moe_ref._varying import vary_together


def gpu_capability() -> tuple[int, int] | None:
    """The compute capability of the NVIDIA GPU that arrays go to if nobody says where, or None."""
    chosen = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    device = chosen or jax.devices()[0]
    if isinstance(device, str):
        device = jax.devices(device)[0]
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    if device.platform != "gpu" or not (major.isdigit() and minor.isdigit()):
        return None
    return int(major), int(minor)


def on_gpu(here: Callable[..., Any], elsewhere: Callable[..., Any], *operands: jax.Array) -> Any:
    """`here` on an NVIDIA GPU, `elsewhere` where operands are on another device than the default.

    Results vary over the mesh axes that operands vary over, which kernels of Pallas lose.
    """
    return lax.platform_dependent(
        *operands, cuda=varying_as_operands(here), default=varying_as_operands(elsewhere)
    )


def varying_as_operands(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with results that vary over the mesh axes that any operand varies over."""

    def varying(*operands):
        results, structure = jax.tree.flatten(function(*operands))
        count = len(results)
        return jax.tree.unflatten(structure, vary_together(*results, *operands)[:count])

    return varying
