"""Checks fail for the implementation they were made for, on inputs that become small."""

import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import conformance
from moe_ref.conformance.mutants._grouped_kernel import Kernel


def test_an_unknown_check_is_named():
    with pytest.raises(ValueError, match=r"`only` must be one of GRP-01, .*; got 'GRP-99'"):
        conformance.run(Kernel().value, op="grouped_matmul", only=["GRP-99"])


def test_a_failing_input_becomes_small():
    def off(x, w, group_sizes):
        y = Kernel().value(*map(np.asarray, (x, w, group_sizes)))
        y[-1:] = 0
        return y

    report = conformance.run(off, op="grouped_matmul", only=["GRP-02"])
    scope: dict = {}
    exec(report.results[0].counterexample, scope)
    assert scope["x"].size <= 4
    assert scope["w"].size <= 4
    assert scope["group_sizes"].sum() == len(scope["x"])


def test_a_failing_layer_becomes_small():
    report = conformance.run(
        lambda layer, x: jnp.zeros_like(x), op="layer", only=["LAY-01"], shrink_seconds=20
    )
    scope: dict = {}
    exec(report.results[0].counterexample, scope)
    assert scope["x"].shape == (1, scope["spec"].d_model)
    assert scope["layer"](jnp.asarray(scope["x"]))[0].shape == scope["x"].shape
