"""Kernels with another path for large inputs."""

from typing import Any

import numpy as np


class ManyExperts:
    """More experts than a limit are left to another kernel.

    Args:
        right: the kernel up to the limit.
        wrong: the one beyond it.
        limit: number of experts.
    """

    def __init__(self, right: Any, wrong: Any, limit: int):
        self._right = right
        self._wrong = wrong
        self._limit = limit

    def value(self, logits: np.ndarray, *given: Any, **named: Any) -> Any:
        """The value."""
        return self._kernel(logits).value(logits, *given, **named)

    def vjp(self, logits: np.ndarray, *given: Any, **named: Any) -> Any:
        """The gradients."""
        return self._kernel(logits).vjp(logits, *given, **named)

    def _kernel(self, logits: np.ndarray) -> Any:
        return self._wrong if logits.shape[1] > self._limit else self._right


def beyond(fault: str | None, limit: int, what: str) -> str:
    """A fault and where it begins."""
    return f"{' '.join((fault or '').split()).removesuffix('.')}: past {limit} {what}."
