"""What must reach nothing: tails, empty groups, other rows, other experts."""

import ml_dtypes
import numpy as np
import pytest

from grouped.reference import expected, integers, run
from moe_ref import grouped

every_implementation = pytest.mark.parametrize("implementation", grouped.implementations())
POISON = [np.nan, np.inf, -np.inf, 1e30]


def assert_exact(results, x, w, sizes, cotangent):
    for actual, bounded in zip(results, expected(x, w, sizes, cotangent), strict=True):
        np.testing.assert_array_equal(np.asarray(actual, np.float64), bounded.value)


@every_implementation
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("sizes", [[3, 0, 2, 0], [5, 0, 0, 0], [0, 0, 0, 0]])
def test_bug_20_tail_reaches_nothing(implementation, dtype, sizes):
    x, w, cotangent = integers(16, 4, 64, 32, dtype)
    used = sum(sizes)
    short = run(x[:5], w, sizes, cotangent[:5], implementation=implementation)
    for poison in POISON:
        x[used:], cotangent[used:] = poison, poison
        y, dx, dw = run(x, w, sizes, cotangent, implementation=implementation)
        np.testing.assert_array_equal(y[:5], short.y)
        np.testing.assert_array_equal(dx[:5], short.dx)
        np.testing.assert_array_equal(dw, short.dw)
        assert not y[used:].any()
        assert not dx[used:].any()


@every_implementation
def test_bug_20_tail_of_a_single_group(implementation):
    x, w, cotangent = integers(16, 1, 64, 32, np.float32)
    x[5:], cotangent[5:] = np.nan, np.inf
    assert_exact(run(x, w, [5], cotangent, implementation=implementation), x, w, [5], cotangent)


@every_implementation
def test_bug_40_all_rows_masked_leave_finite_gradients(implementation):
    x, w, cotangent = (np.full_like(a, np.nan) for a in integers(16, 4, 64, 32, np.float32))
    for result in run(x, w, [0, 0, 0, 0], cotangent, implementation=implementation):
        np.testing.assert_array_equal(result, np.zeros_like(result))


@every_implementation
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["row of x", "row of cotangent", "matrix", "one number each"])
def test_non_finite_values_reach_what_depends_on_them(implementation, poison, where):
    x, w, cotangent = integers(40, 5, 3, 4, np.float32)
    if where == "row of x":
        x[12] = poison
    elif where == "row of cotangent":
        cotangent[12] = poison
    elif where == "matrix":
        w[2] = poison
    else:
        x[3, 2], w[1, 1, 3], cotangent[30, 1] = poison, poison, poison
        x[4, 1], w[2, 0, 0], cotangent[31, 0] = 0, 0, 0
    for sizes in ([11, 9, 10, 0, 7], [0, 25, 0, 12, 0], [13, 0, 27, 0, 0]):
        with np.errstate(invalid="ignore"):
            assert_exact(
                run(x, w, sizes, cotangent, implementation=implementation), x, w, sizes, cotangent
            )


@every_implementation
def test_impossible_sizes_in_traced_arrays_stay_inside(implementation):
    x, w, cotangent = integers(16, 4, 64, 32, np.float32)
    cases = [
        (np.array([9, 9, 9, 9]), [9, 7, 0, 0]),
        (np.array([3, -2, 4, -100]), [3, 0, 4, 0]),
        (np.array([2**31 - 1] * 4), [16, 0, 0, 0]),
        (np.array([0, 2**32 - 1, 5, 0], np.uint32), [0, 0, 5, 0]),
    ]
    for sizes, clipped in cases:
        results = run(x, w, sizes, cotangent, implementation=implementation)
        assert_exact(results, x, w, clipped, cotangent)
