"""Checks fail for the implementation they were made for, on inputs that become small."""

import jax.numpy as jnp
import numpy as np
import pytest

from moe_ref import conformance
from moe_ref.conformance import Case
from moe_ref.conformance._parametrize import message
from moe_ref.conformance._shrink import shrink
from moe_ref.conformance.mutants._grouped_kernel import Kernel
from moe_ref.conformance.mutants._layer_kernel import Layer
from moe_ref.conformance.mutants._losses_kernel import Losses


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


def test_what_nothing_makes_smaller_is_the_input_itself():
    def small(case):
        yield case.replace(x=case.arrays["x"][:1])

    x = np.full((2, 1), 0.37251, np.float32)
    case = Case(label="", arrays={"x": x})
    assert shrink(case, lambda _: False, small) is case
    assert shrink(case, lambda c: len(c.arrays["x"]) == 1, small).arrays["x"].shape == (1, 1)
    whole = case.replace(x=np.ones((2, 1), np.float32))
    assert shrink(whole, lambda c: len(c.arrays["x"]) == 2, small) is whole


@pytest.mark.parametrize(
    ("seconds", "said"), [(15, "smallest input found"), (0, "the input itself")]
)
def test_a_failure_says_whether_its_input_was_made_smaller(seconds, said):
    options = {"op": "grouped_matmul", "only": ["GRP-13"], "shrink_seconds": seconds}
    (result,) = conformance.run(lambda x, w, _: jnp.zeros((len(x), w.shape[2])), **options).results
    assert (result.status, result.shrunk) == ("fail", seconds > 0)
    assert result.about_counterexample == said
    assert f"\n{said}:\n" in message(result)


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


PAIR = "expected (experts, weights)"
PLAN = "expected (rows, group_sizes, unpermute), with unpermute(rows, weights [tokens, k])"
UNPERMUTE = "expected unpermute(rows, weights [tokens, k]) -> [tokens, d]"
CODES = "expected codes and scales"


@pytest.mark.parametrize(
    ("op", "only", "function", "said"),
    [
        (
            "layer",
            "LAY-01",
            lambda layer, x, mask=None: (),
            "a tuple of 0, expected y, or (",
        ),
        (
            "route",
            "RTE-06",
            lambda logits, spec, **_: (logits,),
            f"a tuple of 1, {PAIR}",
        ),
        (
            "losses",
            "LOS-01",
            lambda *_, **__: {"z": np.zeros(())},
            "no balance, expected (balance",
        ),
        ("dispatch_combine", "EXC-01", lambda *_: {"sent": 1}, "y is missing, of sent"),
        ("route", "RTE-06", lambda logits, spec, **_: logits, f"one array, {PAIR}"),
        ("losses", "LOS-01", lambda *_, **__: np.zeros(3), "returned one array, expected (balance"),
        ("plan", "PLN-01", lambda *_: None, f"returned None, {PLAN}"),
        ("plan", "PLN-01", lambda x, *_: (x, x), f"returned a tuple of 2, {PLAN}"),
        ("plan", "PLN-01", lambda x, *_: (x, x, None), f"unpermute is None, {UNPERMUTE}"),
        ("plan", "PLN-01", lambda x, *_: (x, x, 1), f"unpermute is an int, {UNPERMUTE}"),
        ("plan", "PLN-01", lambda x, *_: (x, None, len), "group_sizes is None, expected an array"),
        ("quantize", "QNT-01", lambda x: x[:2], f"returned one array, {CODES}"),
        ("quantize", "QNT-01", lambda x: (x,), f"returned a tuple of 1, {CODES}"),
        ("quantize", "QNT-01", lambda x: (x,) * 4, f"returned a tuple of 4, {CODES}"),
        ("quantize", "QNT-01", lambda x: (x, None), f"returned no scales, {CODES}"),
        ("quantize", "QNT-01", lambda x: {"scales": x}, f"returned no codes, {CODES}"),
        ("quantize", "QNT-01", lambda x: None, f"returned None, {CODES}"),
    ],
)
def test_results_of_another_form_are_failures_and_no_refusals(op, only, function, said):
    _, found = _statuses(op, function, only=[only], gradients=False)
    assert found[only][0] == "fail"
    assert said in found[only][1]


@pytest.mark.parametrize("declared", [True, None])
def test_what_the_first_call_gives_the_later_ones_must(declared):
    kernel, calls = Kernel(), []

    def vjp(x, w, group_sizes, cotangent):
        calls.append((x.shape, w.shape))
        found = dict(zip(("x", "w"), kernel.vjp(x, w, group_sizes, cotangent), strict=True))
        return found if calls[-1] == calls[0] else {}

    mine = conformance.Implementation(
        name="first", op="grouped_matmul", function=kernel.value, vjp=vjp, arrays="numpy",
        gradients=declared,
    )  # fmt: skip
    (result,) = conformance.run(mine, only=["GRP-77"], isolate=False, shrink_seconds=0).results
    assert result.status == "fail"
    assert "wider: grad.x is missing, which the first call gave" in result.detail


def test_what_some_inputs_are_not_given_is_missed():
    def losses(logits, experts, spec, mask=None):
        found = Losses().value(logits, experts, spec, mask)
        return found if len(logits) < 100 else {n: found[n] for n in ("balance", "z")}

    mine = conformance.Implementation(
        name="some", op="losses", function=losses, arrays="numpy", gradients=False
    )
    (result,) = conformance.run(mine, only=["LOS-06"], isolate=False, shrink_seconds=0).results
    assert result.status == "fail"
    assert "load is missing, which other inputs gave" in result.detail
