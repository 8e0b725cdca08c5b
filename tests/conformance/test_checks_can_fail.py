"""Checks fail for the implementation they were made for, on inputs that become small."""

import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import conformance
from moe_ref.conformance.mutants._grouped_kernel import Kernel
from moe_ref.conformance.mutants._layer_kernel import Layer


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


def _statuses(op, function, *, only, **declared):
    mine = conformance.Implementation(
        name="mine", op=op, function=function, arrays="numpy", dtypes=("float32",), **declared
    )
    report = conformance.run(mine, only=only, shrink_seconds=0, isolate=False)
    return report, {r.id: (r.status, r.detail) for r in report.results}


@pytest.mark.parametrize("gradients", [True, None])
def test_a_gradient_that_is_declared_and_missing_is_a_failure(gradients):
    def only_x(*arguments):
        return {"x": Kernel().vjp(*arguments)[0]}

    options = {"only": ["GRP-31", "GRP-32"], "vjp": only_x}
    report, found = _statuses("grouped_matmul", Kernel().value, gradients=gradients, **options)
    assert found["GRP-31"][0] == "pass"
    assert found["GRP-32"][0] == "fail"
    assert "grad.w is missing" in found["GRP-32"][1]
    assert not report.ok
    _, found = _statuses("grouped_matmul", Kernel().value, gradients=("x",), **options)
    assert found["GRP-32"] == ("skipped", "grad.w is declared absent")


def test_a_layer_owes_the_gradient_of_every_parameter():
    kernel = Layer()

    def vjp(*arguments, **options):
        found = kernel.vjp(*arguments, **options)
        return {name: g for name, g in found.items() if name != "layer.experts.w_out"}

    options = {"only": ["LAY-07"], "vjp": vjp}
    _, found = _statuses("layer", kernel.value, gradients=True, **options)
    assert found["LAY-07"][0] == "fail"
    assert "grad.layer.experts.w_out is missing" in found["LAY-07"][1]


@pytest.mark.parametrize(
    ("op", "only", "function", "said"),
    [
        ("layer", "LAY-01", lambda layer, x, mask=None: (), "returned a tuple, which cannot be"),
        ("route", "RTE-06", lambda logits, spec, **_: (logits,), "returned a tuple, which cannot"),
        ("losses", "LOS-01", lambda *_, **__: {"z": np.zeros(())}, "returned a dict, which cannot"),
        ("dispatch_combine", "EXC-01", lambda *_: {"sent": 1}, "y is missing, of sent"),
        ("plan", "PLN-01", lambda *_: None, "returned a NoneType, which cannot be read"),
    ],
)
def test_results_of_another_form_are_failures_and_no_refusals(op, only, function, said):
    _, found = _statuses(op, function, only=[only], gradients=False)
    assert found[only][0] == "fail"
    assert said in found[only][1]
