"""How much memory a layer takes, and how much there is."""

import dataclasses
import importlib
import os
import pathlib
from typing import Any

import jax

# Arrays as large as one network in float64 that the oracle holds at once, and as all gradients.
_OF_ONE, _OF_ALL = 3, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that judging a layer takes, a kernel's own buffers apart.

    Attributes:
        parameters: of the layer, on the host.
        copy: of the same, where the kernel's arrays live on the host too; else 0.
        tokens: all that there is one of for each token.
        oracle: one network in float64, with bounds.
        gradients: of all parameters, with bounds; 0 where they are not judged.
        device: what lies on the kernel's device; 0 where that is the host.
    """

    parameters: int
    copy: int
    tokens: int
    oracle: int
    gradients: int
    device: int

    @property
    def host(self) -> int:
        """Bytes on the host."""
        return self.parameters + self.copy + self.tokens + self.oracle + self.gradients

    @property
    def purposes(self) -> str:
        """What the host's memory is for."""
        parts = [f"parameters {readable(self.parameters)}"]
        parts += [f"the kernel's copy {readable(self.copy)}"] if self.copy else []
        parts += [f"tokens {readable(self.tokens)}", f"one expert {readable(self.oracle)}"]
        parts += [f"gradients {readable(self.gradients)}"] if self.gradients else []
        return ", ".join(parts)

    def __str__(self) -> str:
        host = f"{readable(self.host)} on the host ({self.purposes})"
        return f"{host}, {readable(self.device)} on the device" if self.device else host


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes that are available; None where nobody knows."""

    host: int | None
    device: int | None


def needed(
    *, arrays: str, parameters: int, numbers: int, network: int, tokens: int, pulls: bool
) -> Need:
    """What judging a layer takes.

    Args:
        arrays: library of the kernel's arrays.
        parameters: bytes of the parameters.
        numbers: how many parameters there are.
        network: numbers of the largest network.
        tokens: numbers that there are for all tokens together.
        pulls: whether gradients are judged.

    Returns:
        Bytes by purpose.
    """
    apart = _device_room(arrays) is not None
    return Need(
        parameters=parameters,
        copy=0 if apart else parameters,
        tokens=8 * tokens,
        oracle=8 * _OF_ONE * network,
        gradients=2 * parameters + 8 * _OF_ALL * numbers if pulls else 0,
        device=parameters * (2 if pulls else 1) + 8 * tokens if apart else 0,
    )


def available(arrays: str, limit: int | None) -> Room:
    """What there is: of the host at most `limit`, and of the device that holds the arrays."""
    return Room(host=_host_room() if limit is None else limit, device=_device_room(arrays))


def missing(need: Need, room: Room) -> str | None:
    """Where there is too little, with both numbers; None if there is enough."""
    for place, wanted, have in (
        ("host", need.host, room.host),
        ("device", need.device, room.device),
    ):
        if have is not None and wanted > have:
            return (
                f"at least {wanted} bytes on the {place} ({need.purposes}); "
                f"{have} ({readable(have)}) are available"
            )
    return None


def readable(size: int) -> str:
    """A number of bytes for a reader."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def _host_room() -> int | None:
    """Memory that can be had without swapping, within the limit of the container."""
    found = [_of_system(), _of_container()]
    return min((size for size in found if size is not None), default=None)


def _of_system() -> int | None:
    try:
        lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _of_container() -> int | None:
    folder = pathlib.Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / f"memory.{n}").read_text().strip() for n in ("max", "current"))
    except OSError:
        return None
    return int(limit) - int(used) if limit.isdigit() else None


def _device_room(arrays: str) -> int | None:
    """Free memory of the device the arrays live on; None for the host."""
    if arrays == "jax":
        device = jax.devices()[0]
        stats = None if device.platform == "cpu" else device.memory_stats()
        return stats["bytes_limit"] - stats["bytes_in_use"] if stats else None
    if arrays == "torch":
        torch: Any = importlib.import_module("torch")
        return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    return None
