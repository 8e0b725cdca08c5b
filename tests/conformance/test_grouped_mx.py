"""What is asked of the checks of `grouped_matmul_mx` alone."""

import dataclasses
import functools

import numpy as np
import pytest

from conformance.mutant_rules import judge
from moe_ref import conformance, mx, oracle
from moe_ref.conformance._saved import load_case
from moe_ref.conformance.mutants._grouped_mx import CORRECT, MUTANTS
from moe_ref.spec import MXSpec

OP = "grouped_matmul_mx"
KERNELS = {kernel.name.partition(", ")[2]: kernel for kernel in CORRECT}
WRONG = {mutant.name.partition(", ")[2]: mutant for mutant in MUTANTS}
# What tells formats, rules and weight gradients apart.
TELLING = ["MXG-03", "MXG-04", "MXG-05", "MXG-34", "MXG-52", "MXG-53"]
WAYS = (
    MXSpec(wgrad="requantize"),
    MXSpec(wgrad="high_precision_matmul"),
    MXSpec(format="mxfp8_e5m2", rule="ceil", nonfinite="te"),
    MXSpec(format="mxfp6_e3m2", rule="even"),
    MXSpec(format="mxfp6_e2m3", rule="floor"),
    MXSpec(format="mxfp4_e2m1", rule="rceil_real"),
    MXSpec(format="mxint8", rule="floor"),
)


@pytest.mark.parametrize("wrong", ["QuantisedTwice", "UndeclaredRequantizing"])
def test_normal_data_hide_what_wide_data_show(wrong):
    """A kernel that quantises twice is right about most of what is normally distributed."""
    mutant = WRONG[wrong]
    loud = mutant.killers[0]
    (result,) = judge(mutant.implementation, only=[loud])
    assert result.status == "fail"
    assert result.proven


@pytest.mark.parametrize("name", ["UndeclaredFloor", "OnlyRows", "AcrossGroups", "HalfScale"])
def test_kernels_of_bfloat16_alone_hide_no_scale(name):
    mutant = WRONG[name]
    narrow = dataclasses.replace(mutant.implementation, dtypes=("bfloat16",))
    found = {result.id: result.status for result in judge(narrow, only=mutant.killers)}
    assert set(found.values()) == {"fail"}, found


def _own(spec):
    options = dataclasses.asdict(spec)
    return conformance.Implementation(
        name="own",
        op=OP,
        function=functools.partial(mx.grouped_matmul_mx, **options),
        dtypes=("float32",),
        mx=spec,
        gradients=True,
        may_decline=False,
    )


@pytest.mark.parametrize("spec", WAYS, ids=lambda spec: f"{spec.format}-{spec.wgrad}")
def test_own_kernels_do_what_they_declare(spec):
    results = judge(_own(spec), only=TELLING)
    assert {r.id: r.detail for r in results if r.status != "pass"} == {}


@pytest.mark.parametrize("spec", WAYS, ids=lambda spec: f"{spec.format}-{spec.wgrad}")
def test_own_kernels_do_not_do_what_others_declare(spec):
    results = judge(dataclasses.replace(_own(spec), mx=MXSpec()), only=TELLING)
    assert "fail" in {r.status for r in results}


def test_a_bare_callable_is_taken_for_e4m3_under_rceil():
    kernel = conformance.load_target("moe_ref.mx:grouped_matmul_mx", op=OP)
    report = conformance.run(kernel, only=["MXG-04", "MXG-13"], isolate=False)
    assert report.counts()["pass"] == 2


def test_what_is_declared_goes_with_a_saved_failure(tmp_path):
    wrong = WRONG["UndeclaredBlocks"].implementation
    report = conformance.run(wrong, only=["MXG-32"], save=tmp_path, isolate=False, shrink_seconds=1)
    (result,) = report.results
    assert result.counterexample is not None
    assert result.saved is not None
    assert f"declared: {wrong.mx!r}" in result.counterexample
    assert load_case(result.saved).case.mx == wrong.mx
    assert conformance.replay(wrong, result.saved, isolate=False).status == "fail"
    declares_it = dataclasses.replace(KERNELS["WideWeights"], name="declares_it")
    assert conformance.replay(declares_it, result.saved, isolate=False).status == "pass"


def test_nothing_is_said_where_an_operand_is_beyond_float32():
    """Inf, which saturates at 448 2^127 under this policy, may be Inf in what is multiplied."""
    x, w = np.ones((3, 32), np.float32), np.ones((2, 32, 4), np.float32)
    x[0, 0], w[1, 5, 2] = np.inf, -np.inf
    y = oracle.grouped_matmul_mx(x, w, [2, 1], nonfinite="te")
    assert np.isinf(y.bound).tolist() == [[True] * 4, [False] * 4, [False, False, True, False]]
    assert np.isfinite(y.value).all()
    dy = np.ones((3, 4), np.float32)
    g = oracle.grouped_matmul_mx_vjp(x, w, [2, 1], dy, nonfinite="te")
    inf = np.isinf(g.x.bound)
    assert inf[2, 5]
    assert inf.sum() == 1
    inf = np.isinf(g.w.bound)
    assert inf[0, 0].all()
    assert inf.sum() == 4
