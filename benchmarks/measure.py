"""Time things beside each other."""

import time
from collections.abc import Callable


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
