"""The smallest fault the suite catches in a matrix product, by length, dtype and detector.

A fault is planted in an otherwise right product of 96 rows and 64 columns of normal data: every
result times 1 + eps, or eps times their rms added to every result. The table gives the smallest
eps, among powers of the root of 2, from which on the detector fails for each of five seeds.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from moe_ref import oracle
from moe_ref.conformance import _statistics
from moe_ref.spec import Numerics

TITLE = "Smallest relative fault that is caught"
ROWS, COLUMNS, SEEDS = 96, 64, 5
LENGTHS = (128, 1024, 4096, 7168)
FORMATS = (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))
STEPS = tuple(2.0 ** (-power / 2) for power in range(4, 54))
NEVER = "never"


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _beyond(bound: str) -> Callable[[np.ndarray, oracle.Value], bool]:
    return lambda y, truth: bool((oracle.ratio(y, truth.value, getattr(truth, bound)) > 1).any())


def _fails(judge: Callable[..., object], *more) -> Callable[[np.ndarray, oracle.Value], bool]:
    return lambda y, truth: judge(y, truth, *more).status == "fail"  # pyright: ignore


DETECTORS: dict[str, Callable[[np.ndarray, oracle.Value], bool]] = {
    "worst case": _beyond("worst"),
    "bound": _beyond("bound"),
    "rms": _fails(_statistics.rms),
    "score": lambda y, t: _statistics.score(y, t, t.value, "the value").status == "fail",
    "bias score": lambda y, t: (
        _statistics.score(y, t, np.ones_like(t.value), "a bias").status == "fail"
    ),
    "misrounded": lambda y, t: (
        y.dtype.name == "bfloat16" and _statistics.misrounded(y, t, y.dtype).status == "fail"
    ),
}
FAULTS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "times 1 + eps": lambda y, eps: y * (1 + eps),
    "plus eps rms": lambda y, eps: y + eps * np.sqrt((y**2).mean()),
}


def product(inputs: str, outputs: str, length: int, seed: int) -> tuple[np.ndarray, oracle.Value]:
    """A right product before its last rounding, in float32, and the truth."""
    rng = np.random.default_rng([seed, length])
    x = rng.standard_normal((ROWS, length)).astype(_dtype(inputs))
    w = (rng.standard_normal((1, length, COLUMNS)) * length**-0.5).astype(_dtype(inputs))
    numerics = Numerics(inputs=inputs, output=outputs)  # pyright: ignore[reportArgumentType]
    truth = oracle.grouped_matmul(x, w, [ROWS], numerics=numerics)
    return x.astype(np.float32) @ w[0].astype(np.float32), truth


def smallest(
    detect: Callable[[np.ndarray, oracle.Value], bool],
    fault: Callable[[np.ndarray, float], np.ndarray],
    products: list[tuple[np.ndarray, oracle.Value]],
    outputs: str,
) -> float | str:
    """The smallest fault from which on every seed is caught."""
    found: float | str = NEVER
    for eps in STEPS:
        wrong = [(fault(y, eps).astype(_dtype(outputs)), truth) for y, truth in products]
        if not all(detect(y, truth) for y, truth in wrong):
            break
        found = eps
    return found


def rows() -> list[dict]:
    """One row for each fault, format and length."""
    table = []
    for name, fault in FAULTS.items():
        for inputs, outputs in FORMATS:
            for length in LENGTHS:
                products = [product(inputs, outputs, length, seed) for seed in range(SEEDS)]
                clean = [(y.astype(_dtype(outputs)), truth) for y, truth in products]
                for detector, detect in DETECTORS.items():
                    assert not any(detect(y, t) for y, t in clean), detector
                row = {"fault": name, "in": inputs, "out": outputs, "K": length}
                for detector, detect in DETECTORS.items():
                    row[detector] = smallest(detect, fault, products, outputs)
                table.append(row)
    return table
