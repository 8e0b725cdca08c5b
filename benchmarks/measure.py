"""Time things beside each other."""

import datetime
import os
import platform
import time
from collections.abc import Callable

import jax


def about() -> dict[str, str]:
    """Machine, versions, date, and how memory is allocated."""
    device = jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind}",
        "malloc": os.environ.get("GLIBC_TUNABLES") or "default",
    }


def interleaved(runs: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Smallest time of each run in ms, the runs taking turns so that noise meets all alike.

    Args:
        runs: what to time; each call must return only when its work is done.
        repeats: rounds after one round that warms up.
    """
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(repeats + 1):
        for name, run in runs.items():
            time.sleep(0.01)  # threads of the run before this one may spin on for a while
            start = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best
