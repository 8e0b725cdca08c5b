"""What is asked of the checks of `quantize` alone."""

import dataclasses
import itertools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from conformance.mutant_rules import (
    alarms,
    judge,
)
from moe_ref import conformance, mx, oracle
from moe_ref.conformance.mutants._quantize import CORRECT, MUTANTS
from moe_ref.conformance.operations import OPERATIONS, evaluate
from moe_ref.conformance.suite import _quantize_cases as cases
from moe_ref.conformance.suite._quantize_elsewhere import in_matrices
from moe_ref.conformance.suite._quantize_judge import truth
from moe_ref.spec import MXSpec

OP = "quantize"
PLAIN = CORRECT[0]
FORMATS = [format for format in mx.formats() if format.startswith("mx")]


def _drawn(inputs, dtype, **declared):
    """A case as a kernel of these settings gets it."""
    mine = dataclasses.replace(PLAIN, **declared)
    case = next(iter(inputs(np.random.default_rng(0), dtype, "smoke")))
    return mine.fitted(case)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("format", "rule"), [*itertools.product(FORMATS, mx.rules())])
def test_what_codes_can_write_is_written_exactly_under_every_rule(format, rule, dtype):
    """The law of QNT-46, which holds for values; bytes come back under `floor` and `even` alone."""
    case = _drawn(cases.wide, dtype, mx=MXSpec(format=format, rule=rule))
    first = truth(case)
    options = {"axis": -1, "block": 32}
    values = oracle.dequantize(first.elements, first.scales, format, **options)
    again = truth(case.replace(x=values.astype(case.arrays["x"].dtype)))
    back = oracle.dequantize(again.elements, again.scales, format, **options)
    np.testing.assert_array_equal(back, values)
    if rule in ("floor", "even"):
        np.testing.assert_array_equal(again.scales, first.scales)
        np.testing.assert_array_equal(again.elements, first.elements)


@pytest.mark.parametrize("format", FORMATS)
def test_data_reaches_what_it_is_about(format):
    """Rules that differ in float32 differ on the data; the smallest scales are there, and many."""
    rules = {rule: MXSpec(format=format, rule=rule) for rule in mx.rules()}
    scales = {r: truth(_drawn(cases.edges, "float32", mx=mine)).scales for r, mine in rules.items()}
    # Away from the smallest scales these two are the same.
    del scales["rceil_real"]
    for one, other in itertools.combinations(scales.values(), 2):
        assert (one != other).any()
    small = truth(_drawn(cases.tiny, "float32", mx=rules["rceil"]))
    assert (small.scales == 0).any()
    assert len(np.unique(truth(_drawn(cases.wide, "float32", mx=rules["rceil"])).scales)) > 80


def test_the_quotient_that_is_subnormal_is_among_the_inputs():
    patterns = set()
    for case in cases.first_scales(np.random.default_rng(0), "float32", "smoke"):
        patterns |= set((case.arrays["x"].view(np.uint32) & 0x7FFFFFFF).reshape(-1).tolist())
    assert patterns >= {0x04600001, 0x07E00001, 0x01400001}


def test_gaussian_values_hardly_show_a_second_rounding_and_wide_ones_do():
    def values(x, axis):
        q = oracle.quantize(x, "mxfp8_e4m3", axis=axis)
        return oracle.dequantize(q.elements, q.scales, "mxfp8_e4m3", axis=axis)

    def differ(inputs):
        x = _drawn(inputs, "float32").arrays["x"]
        return (values(values(x, -2).astype(np.float32), -1) != values(x, -1)).mean()

    assert differ(cases.wide) > 100 * differ(cases.ordinary)


def _codes(x, dtype=np.uint8, scale_dtype=np.uint8, form=tuple):
    right = oracle.quantize(np.asarray(x), "mxfp8_e4m3", axis=-1)
    codes, scales = right.elements.view(dtype), right.scales.view(scale_dtype)
    if form is dict:
        return {"codes": codes, "scales": scales}
    return codes, scales


FORMS = {
    "bytes": {},
    "narrow dtypes": {"dtype": ml_dtypes.float8_e4m3fn, "scale_dtype": ml_dtypes.float8_e8m0fnu},
    "int8": {"dtype": np.int8},
    "dict": {"form": dict},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("arrays", ["numpy", "jax"])
def test_codes_are_read_as_bits(arrays, options):
    def function(x):
        found = _codes(x, **options)
        if arrays == "numpy":
            return found
        if isinstance(found, dict):
            return {name: jnp.asarray(array) for name, array in found.items()}
        return tuple(jnp.asarray(array) for array in found)

    mine = conformance.Implementation(name="mine", op=OP, function=function, arrays=arrays)
    only = ["QNT-01", "QNT-09", "QNT-13", "QNT-32"]
    assert {r.id: r.status for r in judge(mine, only=only)} == dict.fromkeys(only, "pass")


def test_narrow_tensors_of_torch_are_read_as_bits():
    torch = pytest.importorskip("torch")

    def function(x):
        codes, scales = (torch.from_numpy(a) for a in _codes(x.float().numpy()))
        return codes.view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu)

    mine = conformance.Implementation(name="mine", op=OP, function=function, arrays="torch")
    only = ["QNT-02", "QNT-09", "QNT-13", "QNT-52"]
    assert {r.id: r.status for r in judge(mine, only=only)} == dict.fromkeys(only, "pass")


def test_what_the_library_returns_is_understood():
    def function(x):
        return mx.quantize(x, "mxfp8_e4m3", axis=-1)

    mine = conformance.Implementation(name="mine", op=OP, function=function)
    found = {r.id: (r.status, r.detail) for r in judge(mine, only=["QNT-02", "QNT-32"])}
    assert found["QNT-02"] == ("pass", "")
    # It refuses a block that is short unless it is told to fill it up.
    assert found["QNT-32"][0] == "skipped"


def test_packed_codes_are_refused_by_shape():
    def function(x):
        codes, scales = _codes(x)
        return codes[..., ::2] | codes[..., 1::2], scales

    mine = conformance.Implementation(name="mine", op=OP, function=function, arrays="numpy")
    (result,) = judge(mine, only=["QNT-01"])
    assert "codes is uint8[48, 64], expected an integer array [48, 128]" in result.detail


def test_a_difference_is_told_in_bytes_with_value_and_largest():
    def function(x):
        codes, scales = _codes(x)
        codes[0, 1] ^= 1
        return codes, scales

    mine = conformance.Implementation(
        name="mine", op=OP, function=function, arrays="numpy", dtypes=("float32",)
    )
    (result,) = judge(mine, only=["QNT-01"])
    assert "codes[0, 1], of " in result.detail
    assert "in a block of " in result.detail
    assert "(mxfp8_e4m3, rceil, poison); 1 of 6144 differ" in result.detail


@pytest.mark.parametrize("axis", [-1, -2])
def test_inputs_are_laid_out_as_declared(axis):
    shapes = set()

    def function(x):
        shapes.add(x.shape)
        right = oracle.quantize(x, "mxfp4_e2m1", axis=axis, block=16)
        return right.elements, right.scales

    mine = conformance.Implementation(
        name="mine",
        op=OP,
        function=function,
        arrays="numpy",
        mx=MXSpec(format="mxfp4_e2m1"),
        axis=axis,
        block=16,
        multiple_of={"k": 64, "rows": 8},
    )
    assert {r.status for r in judge(mine)} == {"pass", "skipped"}
    lengths = {shape[axis] for shape in shapes if len(shape) > 1}
    assert all(length % 64 == 0 for length in lengths)
    assert {64, 2112, 4096} <= lengths
    rows = {np.prod(shape) // shape[axis] for shape in shapes if len(shape) > 1}
    assert all(count % 8 == 0 for count in rows)


def test_the_scale_of_zeros_is_looked_at_by_two_checks_alone():
    (other,) = (m for m in MUTANTS if m.name == "quantize, ZeroBlockOfOne")
    assert set(alarms(other.implementation, 0)) == {"QNT-07", "QNT-20"}


def test_values_are_judged_wherever_bytes_are():
    def reads_nothing(x):
        return PLAIN.function(x) | {"values": np.full(x.shape, 3.0, np.float32)}

    found = {r.id: r.status for r in judge(dataclasses.replace(PLAIN, function=reads_nothing))}
    # No rows have no values, and of an input that is watched no result is looked at.
    assert {i for i, status in found.items() if status != "fail"} == {"QNT-35", "QNT-51"}


def test_blocks_of_every_kind_are_in_every_shape():
    """What is not finite has either sign and stands at the beginning, the end or between."""
    inputs = in_matrices(cases.nans, cases.infinities)
    drawn = list(inputs(np.random.default_rng(0), "float32", "smoke"))
    assert all(not np.isfinite(case.arrays["x"]).all() for case in drawn)
    alone = [case.arrays["x"][0] for case in drawn if case.arrays["x"].shape == (1, 32)]
    at = [int(np.flatnonzero(~np.isfinite(x))[0]) for x in alone]
    found = {(str(x[i]), i if i in (0, 31) else 1) for x, i in zip(alone, at, strict=True)}
    for value in ("nan", "inf", "-inf"):
        assert {place for v, place in found if v == value} == {0, 1, 31}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nan_of_any_bits_is_written_as_it_is(dtype):
    *_, case = cases.nans(np.random.default_rng(0), dtype, "smoke")
    x = case.arrays["x"][np.isnan(case.arrays["x"])]
    assert len({each.tobytes() for each in x}) == 6
    scope: dict = {}
    exec(case.replace(x=x).as_python(), scope)
    assert scope["x"].dtype == x.dtype
    assert scope["x"].tobytes() == x.tobytes()


def test_a_failing_input_becomes_small():
    def function(x):
        codes, scales = _codes(x)
        return np.where(x == x.max(), 0, codes).astype(np.uint8), scales

    mine = conformance.Implementation(name="mine", op=OP, function=function, arrays="numpy")
    report = conformance.run(mine, only=["QNT-02"], isolate=False)
    scope: dict = {}
    exec(report.results[0].counterexample, scope)
    assert scope["x"].size <= 2


@pytest.mark.parametrize("axis", [1, -3, 0])
def test_another_axis_is_wrong_use(axis):
    with pytest.raises(ValueError, match="`axis` must be -1 or -2"):
        dataclasses.replace(PLAIN, axis=axis)


def test_the_operation_is_called_with_the_array_alone():
    case = _drawn(cases.wide, "float32")
    got = []
    mine = dataclasses.replace(PLAIN, function=lambda *a, **k: got.append((a, k)) or _codes(a[0]))
    outputs = evaluate(OPERATIONS[OP], mine, "value", case)
    assert [(len(a), k) for a, k in got] == [(1, {})]
    assert set(outputs) == {"codes", "scales"}
