"""What a kernel prints: shown, unless it is a flood."""

import os
import sys
import threading
from typing import IO

# A kernel that prints more than this in one call has failed, and no more of it is shown.
LIMIT = 2**20
_CHUNK = 2**16


class Output:
    """Drains a pipe into standard error."""

    def __init__(self, pipe: IO[bytes] | None):
        assert pipe is not None
        self._pipe = pipe
        self._printed = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Count from here."""
        self._printed = 0

    @property
    def flood(self) -> str | None:
        """What to say if too much was printed since `reset`."""
        return f"it printed more than {LIMIT} bytes" if self._printed > LIMIT else None

    def close(self) -> None:
        """Read what is left of a process that has ended."""
        self._thread.join(timeout=5)
        self._pipe.close()

    def _drain(self) -> None:
        while chunk := os.read(self._pipe.fileno(), _CHUNK):
            if self._printed <= LIMIT:
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()
            self._printed += len(chunk)
