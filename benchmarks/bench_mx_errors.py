"""What narrow formats do to data: signal-to-noise ratio and worst errors by format, rule and data.

1024 rows of 1024 float32 values from one seed, blocks along rows, errors taken in float64:
normal; Student's t with 3 degrees of freedom; and normal with `OUTLIERS` columns times 2^6, once
all columns and once the ordinary ones alone, some of which share blocks with the large ones.
"""

import jax.numpy as jnp
import numpy as np

from moe_ref import mx

TITLE = "What narrow formats do to data"
SIZE, SEED, OUTLIERS = 1024, 0, 8


def data() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values, and the columns that are looked at."""
    rng = np.random.default_rng(SEED)
    normal = rng.standard_normal((SIZE, SIZE))
    heavy = rng.standard_t(3, (SIZE, SIZE))
    every, large = np.arange(SIZE), rng.choice(SIZE, OUTLIERS, replace=False)
    outlying = normal * np.where(np.isin(every, large), 2.0**6, 1.0)
    kinds = {
        "normal": (normal, every),
        "Student t": (heavy, every),
        "outlier columns": (outlying, every),
        "columns beside outliers": (outlying, np.setdiff1d(every, large)),
    }
    return {name: (x.astype(np.float32), columns) for name, (x, columns) in kinds.items()}


def errors(x: np.ndarray, columns: np.ndarray, format: str, rule: str) -> dict:
    """Of the values in some columns, each quantised with all of its block.

    `worst / value` is the largest error relative to the value, `worst / largest` to the largest
    magnitude of the block, and `lost` the share of values that become zero.
    """
    q = mx.quantize(jnp.asarray(x), format, axis=-1, rule=rule)
    y = np.asarray(q.dequantize(), np.float64)
    x = x.astype(np.float64)
    largest = np.abs(x).reshape(SIZE, -1, *q.block).max(-1).repeat(*q.block, axis=-1)
    x, y, largest = (a[:, columns] for a in (x, y, largest))
    wrong = np.abs(y - x)
    return {
        "SQNR dB": float(10 * np.log10((x**2).sum() / (wrong**2).sum())),
        "worst / value": float((wrong / np.abs(x)).max()),
        "worst / largest": float((wrong / largest).max()),
        "lost": float(((y == 0) & (x != 0)).mean()),
    }


def rows() -> list[dict]:
    """One row for each format, rule and data."""
    kinds = data()
    return [
        {"format": format, "rule": rule, "data": name} | errors(*kinds[name], format, rule)
        for format in mx.formats()
        for rule in mx.rules(format)
        for name in kinds
    ]
