"""An end to waiting for a process that is gone."""

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator

import jax

from moe_ref._errors import require

EXIT_CODE = 124


@contextlib.contextmanager
def time_limit(seconds: float | int, what: str) -> Iterator[None]:
    """End this process, with a message, unless the block ends in time.

    A collective whose partners never come waits for ever, in a thread that no exception reaches.
    So the process itself is ended, with exit code 124: a launcher then ends the others, and they
    have limits of their own. Results arrive late, so wait for them inside the block.

    An exception leaves the limit running where there are several processes: it is printed, and
    then JAX waits at exit for all of them, for minutes, the dead one included.

    Enter it after `jax.distributed.initialize`: it asks JAX which process this is.

    Args:
        seconds: how long the block may take, compiling included.
        what: what the block does, for the message.

    Raises:
        ValueError: `seconds` is not positive.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from moe_ref import parallel

        with parallel.time_limit(60, "a step"):
            jax.block_until_ready(jnp.ones(3) + 1)
        ```
    """
    require(seconds > 0, "seconds", "positive", seconds)
    # Asked now: while JAX leaves, it has no backend to ask.
    who = f"process {jax.process_index()} of {jax.process_count()}"
    timer = threading.Timer(seconds, _end, (f"{who}: {what} took longer than {seconds} s",))
    timer.daemon = True
    timer.start()
    try:
        yield
    except BaseException:
        if jax.process_count() == 1:
            timer.cancel()
        raise
    timer.cancel()


def _end(said: str) -> None:
    why = "Another process is gone, or waits in another collective."
    print(f"moe_ref: {said}. {why}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    os._exit(EXIT_CODE)
