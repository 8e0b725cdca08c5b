"""How kernels are called: together, again, watched, on other strides; and what is said of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.mutant_rules import judge
from moe_ref import conformance
from moe_ref.conformance import Case, Implementation
from moe_ref.conformance._saved import Saved, load_case, save_case
from moe_ref.conformance.mutants import _calls
from moe_ref.conformance.mutants._grouped_kernel import Kernel
from moe_ref.conformance.operations import LIBRARIES, OPERATIONS, evaluate_all
from moe_ref.conformance.operations._libraries import library
from moe_ref.conformance.suite._calls import CHECKS
from moe_ref.conformance.suite._calls_cases import SUBJECTS

MUTANTS = [mutant for mutants in _calls.MUTANTS.values() for mutant in mutants]
IDS = {"ids": lambda each: each.name}
# `make mutants` tries those of every operation.
QUICK = _calls.MUTANTS["plan"]
OTHERS = [pytest.param(m, marks=pytest.mark.thorough) for m in MUTANTS if m not in QUICK]


@pytest.mark.parametrize("mutant", [*QUICK, *OTHERS], **IDS)
def test_what_is_wrong_is_noticed(mutant):
    results = judge(mutant.implementation, only=mutant.killers)
    assert {r.id: r.status for r in results} == dict.fromkeys(mutant.killers, "fail")


@pytest.mark.parametrize("implementation", _calls.CORRECT.values(), **IDS)
def test_a_kernel_may_declare_that_its_arrays_are_contiguous(implementation):
    ids = {check.id: check.needs for check in CHECKS if check.op == implementation.op}
    found = {r.id: r.status for r in judge(implementation, only=ids)}
    undeclared = ("any_layout", "capacity")
    wanted = {i: "skipped" if needs in undeclared else "pass" for i, needs in ids.items()}
    assert found == wanted


def test_every_operation_has_every_check():
    kinds = {(check.op, check.id) for check in CHECKS if check.id not in ("PLN-56", "PLN-57")}
    assert len(kinds) == 6 * len(SUBJECTS)
    assert {op for op, _ in kinds} == {subject.op for subject in SUBJECTS}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda each: each.op)
def test_the_call_that_follows_has_the_same_shapes_and_other_numbers(subject):
    for case in subject.cases(np.random.default_rng(0), "float32", "smoke"):
        other = subject.other(case)
        forms = [
            {n: (a.shape, a.dtype) for n, a in each.arrays.items() if n != "layer"}
            for each in (case, other)
        ]
        assert forms[0] == forms[1]
        assert any(
            not np.array_equal(case.arrays[n], other.arrays[n]) for n in case.arrays if n != "layer"
        )


def _grouped(function, **declared):
    fields = {"name": "mine", "op": "grouped_matmul", "arrays": "numpy", "dtypes": ("float32",)}
    return Implementation(function=function, **fields | declared)


def test_value_only_kernels_are_watched():
    def halves(x, w, group_sizes):
        y = Kernel().value(x, w, group_sizes)
        x *= 0.5
        return y

    results = judge(_grouped(halves, gradients=False), only=["GRP-02", "GRP-67", "GRP-70"])
    assert {r.id: r.status for r in results} == {
        "GRP-02": "pass",
        "GRP-67": "fail",
        "GRP-70": "skipped",
    }
    assert "x is an input, and holds other numbers after the call" in results[1].detail


def test_jax_kernels_may_not_give_their_inputs_away():
    @jax.jit
    def right(x, w, group_sizes):
        owner = jnp.repeat(jnp.arange(len(w)), group_sizes, total_repeat_length=len(x))
        return jnp.einsum("rk,rkn->rn", x, w[owner], precision="highest")

    donates = jax.jit(lambda x, w, sizes: (right(x, w, sizes), 2 * x), donate_argnums=0)
    only = ["GRP-67"]
    fields = {"arrays": "jax", "gradients": False}
    kept = _grouped(right, **fields)
    assert [r.status for r in judge(kept, only=only)] == ["pass"]
    (result,) = judge(_grouped(lambda *given: donates(*given)[0], **fields), only=only)
    assert result.status == "fail"
    assert "x is gone after the call" in result.detail


def test_arrays_of_jax_have_no_strides():
    results = judge(_grouped(lambda x, w, _: x, arrays="jax"), only=["GRP-68"])
    assert [(r.status, r.detail) for r in results] == [("skipped", "any_layout is not declared")]


@pytest.mark.parametrize("name", [name for name in LIBRARIES if name != "jax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (5,), (0, 4), (3, 1), ()])
def test_the_same_numbers_lie_otherwise_in_memory(name, dtype, shape):
    if name == "torch":
        pytest.importorskip("torch")
    of = library(name)
    array = np.arange(np.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))
    dense = of.give(array)
    for manner in ("transposed", "spaced"):
        given = of.give(array, manner)
        np.testing.assert_array_equal(of.take(given), array)
        strides = [each.stride() if name == "torch" else each.strides for each in (given, dense)]
        differs = array.size > 1 and (len(shape) > 1 or manner == "spaced")
        if differs and not (manner == "transposed" and 1 in shape[-2:]):
            assert strides[0] != strides[1]


def test_the_layout_of_a_failing_input_is_named():
    mutant = next(each for each in MUTANTS if each.name == "grouped_matmul, ReadsDense")
    (result,) = judge(mutant.implementation, only=["GRP-68"])
    assert result.detail.startswith("sizes of all kinds, transposed, float32: ")
    assert "# Give every matrix as the transposed view of its transpose." in result.counterexample


def test_calls_come_before_results_are_read():
    seen = []

    def plan(x, experts, num_experts):
        seen.append("permute")
        rows, sizes, back = _calls.Plan().value(x, experts, num_experts)

        def unpermute(*given):
            seen.append("unpermute")
            return back(*given)

        return rows, sizes, unpermute

    mine = Implementation(name="mine", op="plan", function=plan, arrays="numpy")
    subject = next(subject for subject in SUBJECTS if subject.op == "plan")
    case = next(iter(subject.cases(np.random.default_rng(0), "float32", "smoke")))
    orders = {"together": ["permute"] * 2 + ["unpermute"] * 2}
    orders |= {"reused": ["permute", "unpermute", "unpermute"]}
    for manner, order in orders.items():
        first = dataclasses.replace(case, manner=manner)
        cases = {"": first, "later": subject.other(first)}
        evaluate_all(OPERATIONS["plan"], mine, "value", cases)
        assert seen == order
        seen.clear()


def test_a_saved_failure_keeps_its_manner(tmp_path):
    case = Case(label="", arrays={"x": np.zeros(2)}, manner="spaced")
    saved = Saved(check="GRP-68", op="grouped_matmul", implementation="mine", case=case)
    assert load_case(save_case(saved, tmp_path)).case.manner == "spaced"


def one_too_few(x, w):
    return x


def one_too_many(x, w, group_sizes, tile):
    return x


def named_only(x, w, group_sizes, *, tile):
    return x


@pytest.mark.parametrize("function", [one_too_few, one_too_many, named_only, jax.jit(one_too_few)])
@pytest.mark.parametrize("isolate", [True, False])
def test_a_kernel_of_another_signature(function, isolate):
    mine = _grouped(function, arrays="jax")
    options = {"only": ["GRP-02", "GRP-06"], "isolate": isolate, "shrink_seconds": 0}
    for result in conformance.run(mine, **options).results:
        assert result.status == "fail"
        assert "it cannot be called with 3 positional arguments, " in result.detail
        signature = "f(x [rows, k], w [experts, k, n], group_sizes [experts]) -> [rows, n]"
        assert result.detail.endswith(f"expected {signature}")


def test_a_gradient_of_another_signature():
    mine = _grouped(Kernel().value, vjp=one_too_few)
    (result,) = judge(mine, only=["GRP-31"])
    assert result.status == "fail"
    assert "it cannot be called with 4 positional arguments" in result.detail
    assert "expected vjp(" in result.detail


def test_a_kernel_without_a_mask_declines_masks():
    mine = Implementation(name="mine", op="layer", function=lambda layer, x: x, arrays="numpy")
    (result,) = judge(mine, only=["LAY-06"])
    assert result.status == "skipped"
    assert "unexpected keyword argument 'mask'" in result.detail


def test_a_type_error_inside_is_a_refusal():
    def inside(x, w, group_sizes):
        return len(5)

    (result,) = judge(_grouped(inside), only=["GRP-06"])
    assert result.status == "skipped"
    assert "object of type 'int' has no len()" in result.detail


def _raises(x, w, group_sizes):
    return _deeper(x)


def _deeper(x):
    raise RuntimeError("out of luck")


def test_where_a_kernel_failed_is_said_of_its_own_file_only():
    (result,) = judge(_grouped(_raises), only=["GRP-02"])
    line = _deeper.__code__.co_firstlineno + 1
    assert result.detail.endswith(f"RuntimeError: out of luck (_deeper, line {line})")
    (result,) = judge(_grouped(lambda *_: None), only=["GRP-02"])
    assert result.detail.endswith("y is None, expected an array")
