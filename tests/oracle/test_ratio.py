"""What counts as agreement where numbers are not ordinary."""

import numpy as np
import pytest

from moe_ref import oracle

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("actual", "value", "bound", "expected"),
    [
        (1.0, 1.0, 0.0, 0.0),
        (1.5, 1.0, 1.0, 0.5),
        (1.5, 1.0, 0.0, INF),
        (-0.0, 0.0, 0.0, 0.0),
        (NAN, 1.0, 1.0, INF),
        (INF, 1.0, 1.0, INF),
        (7.0, 1.0, INF, 0.0),
        (NAN, 1.0, INF, 0.0),
        (NAN, NAN, INF, 0.0),
        (INF, NAN, INF, 0.0),
        (INF, INF, INF, 0.0),
        (1.0, NAN, INF, INF),
        (1.0, INF, NAN, INF),
    ],
)
def test_ratio(actual, value, bound, expected):
    assert oracle.ratio([actual], np.array([value]), np.array([bound])).tolist() == [expected]


def test_deaf_and_resolution():
    value = oracle.grouped_matmul(np.eye(2, dtype=np.float32), np.zeros((1, 2, 2)), [2])
    assert not oracle.deaf(value).any()  # zeros known exactly
    assert oracle.resolution(value) == INF
