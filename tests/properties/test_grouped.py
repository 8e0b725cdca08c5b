"""Every implementation of the grouped matmul, value and gradients, under any group sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_ref import oracle
from moe_ref.conformance import strategies
from moe_ref.grouped import grouped_matmul, implementations
from properties.judge import assert_within
from properties.replay import some

EXPERTS, ROWS, K, N = 6, 33, 8, 5


@functools.cache
def pulled(implementation):
    @jax.jit
    def run(x, w, group_sizes, cotangent):
        multiply = functools.partial(
            grouped_matmul, group_sizes=group_sizes, implementation=implementation
        )
        y, back = jax.vjp(multiply, x, w)
        return y, *back(cotangent)

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("implementation", implementations())
@some(2)
@given(data=st.data())
def test_grouped_matmul_equals_the_oracle(implementation, dtype, data):
    """Tail rows are poisoned with NaN, and so are the matrices of empty groups."""
    draw = functools.partial(strategies.arrays, dtype=dtype)
    x = data.draw(draw((ROWS, K), magnitude=strategies.magnitudes()))
    w = data.draw(draw((EXPERTS, K, N), magnitude=strategies.magnitudes()))
    cotangent = data.draw(draw((ROWS, N)))
    sizes = data.draw(strategies.group_sizes(experts=EXPERTS, rows=ROWS))
    tail = np.arange(ROWS) >= sizes.sum()
    x[tail], cotangent[tail], w[sizes == 0] = np.nan, np.nan, np.nan
    y, dx, dw = pulled(implementation)(*map(jnp.asarray, (x, w, sizes, cotangent)))
    truth = oracle.grouped_matmul_vjp(x, w, sizes, cotangent)
    assert y.dtype == dx.dtype == dw.dtype == x.dtype
    assert_within(y, oracle.grouped_matmul(x, w, sizes), "y")
    assert_within(dx, truth.x, "dx")
    assert_within(dw, truth.w, "dw")
    assert not np.asarray(y, np.float32)[tail].any()
    assert not np.asarray(dw, np.float32)[sizes == 0].any()
