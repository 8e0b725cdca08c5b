"""The table of implementations: a new one is a file beside this and a row here."""

import jax

from moe_ref._errors import require_choice
from moe_ref.grouped import _blocked, _loop, _mosaic, _xla
from moe_ref.grouped._kernel import Kernel

KERNELS: dict[str, Kernel] = {
    "loop": _loop.KERNEL,
    "xla": _xla.KERNEL,
    "blocked": _blocked.KERNEL,
    "mosaic": _mosaic.KERNEL,
}

# Fastest implementation of each backend but Hopper's; "blocked" for the others.
FASTEST = {"tpu": "xla"}


def implementations() -> tuple[str, ...]:
    """Names that `grouped_matmul(..., implementation=)` takes on this device, beside "auto".

    Example:
        ```python
        from moe_ref import grouped

        assert "blocked" in grouped.implementations()
        ```
    """
    return tuple(name for name in KERNELS if name != "mosaic" or _mosaic.hopper())


def resolve(implementation: str) -> str:
    """Name of a kernel: "auto" becomes the fastest one of the default device."""
    if implementation not in KERNELS:
        require_choice(implementation, "implementation", ("auto", *implementations()))
    if implementation == "auto":
        return "mosaic" if _mosaic.hopper() else FASTEST.get(jax.default_backend(), "blocked")
    return implementation
