"""How much of a bound an error takes."""

from typing import Any

import numpy as np


@np.errstate(all="ignore")
def ratio(actual: Any, value: np.ndarray, bound: np.ndarray) -> np.ndarray:
    r"""$|y - v| / b$, elementwise: at most 1 for a correct kernel.

    Args:
        actual: what a kernel computed.
        value: the oracle's number.
        bound: `bound`, or `worst`, that goes with it.

    Returns:
        float64 of the same shape, never NaN: 0 where both agree exactly, inf where they differ
        and the bound is 0.

    Special cases:
        Where `value` is not finite, `actual` must not be either: 0 if so, else inf. (Which of NaN
        and Inf it is depends on the order of the sum.) Where `value` is finite and its bound inf,
        nothing is asked: 0. Elsewhere a NaN or Inf in `actual` gives inf.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle

        r = oracle.ratio([1.0, 2.0, 3.0], np.array([1.0, 2.5, 3.0]), np.array([0.0, 1.0, 0.1]))
        assert r.tolist() == [0.0, 0.5, 0.0]
        ```
    """
    y = np.asarray(actual).astype(np.float64)
    error = np.abs(y - value)
    taken = np.where(error == 0, 0.0, error / bound)
    taken = np.where(np.isfinite(y), taken, np.inf)
    taken = np.where(np.isinf(bound) | np.isnan(bound), 0.0, taken)
    return np.where(np.isfinite(value), taken, np.where(np.isfinite(y), np.inf, 0.0))
