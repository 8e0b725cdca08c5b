"""Wrong use of the Python interface names the argument, and a wrong result the result."""

import pytest

from moe_ref import conformance
from moe_ref.conformance import Implementation


def kernel(x, w, group_sizes):
    return None


@pytest.mark.parametrize("gradients", [("zz",), ("dx",), ("x", "layer.experts.w_in")])
def test_gradients_of_what_is_no_input(gradients):
    with pytest.raises(ValueError, match="`gradients` must be one of w, x"):
        Implementation(name="kernel", op="grouped_matmul", function=kernel, gradients=gradients)


def test_parameters_of_a_layer_are_named_as_they_lie_in_it():
    names = ("x", "layer.experts.w_in")
    declared = Implementation(name="kernel", op="layer", function=kernel, gradients=names)
    assert declared.has_gradient(names[1])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("time_limit", 0),
        ("memory_limit", -5),
        ("seed", -1),
        ("only", "GRP-01"),
    ],
)
def test_of_run(argument, value):
    with pytest.raises(ValueError, match=f"`{argument}` must be "):
        conformance.run(kernel, op="grouped_matmul", **{argument: value})


def yields(x, w, group_sizes):
    yield x


@pytest.mark.parametrize(("function", "what"), [(kernel, "None"), (yields, "generator")])
def test_what_is_no_array_is_said_to_be_none(function, what):
    implementation = Implementation(
        name="kernel", op="grouped_matmul", function=function, arrays="numpy"
    )
    report = conformance.run(implementation, only=["GRP-02"], isolate=False, shrink_seconds=0)
    assert report.results[0].status == "fail"
    assert "expected an array" in report.results[0].detail
    assert what in report.results[0].detail
