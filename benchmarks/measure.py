"""Time things beside each other."""

import datetime
import os
import platform
import statistics
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


def median_ms(run: Callable[[], object], wait: Callable[[object], object], *, calls: int) -> float:
    """Median over five batches of calls that are queued behind each other on a device.

    Args:
        run: what to time.
        wait: for the result of the last call.
        calls: of a batch.
    """
    wait(run())
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            result = run()
        wait(result)
        times.append((time.perf_counter() - start) / calls)
    return 1e3 * statistics.median(times)
