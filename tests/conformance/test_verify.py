"""Golden vectors: the judgement of what another program made of them."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conformance.golden import ALL, FEW, grouped, write
from moe_ref import conformance
from moe_ref.conformance._verify import case_of, verify
from moe_ref.conformance.mutants import CORRECT
from moe_ref.conformance.operations import evaluate
from moe_ref.spec import SPEC_VERSION


def _statuses(vectors, answers):
    return {r.id: r.status for report in verify(vectors, answers) for r in report.results}


def _change(path, **tensors):
    found = {k: v for k, v in (load_file(path) | tensors).items() if v is not None}
    save_file(found, path)


def test_right_results_hold(vectors, answers):
    (report,) = verify(vectors, answers)
    assert [(r.id, r.status) for r in report.results] == [(each, "pass") for each in FEW]
    assert {r.implementation for r in report.results} == {"answers"}
    # The judge of the kernels judges: the same kernel has the same ratio.
    kernel = conformance.Implementation(
        name="k",
        op="grouped_matmul",
        function=lambda x, w, s: grouped({"x": x, "w": w, "group_sizes": s}, "", False)["y"],
        arrays="numpy",
    )
    (result,) = conformance.run(kernel, only=["GRP-03"]).results
    assert report.results[0].ratio == result.ratio
    assert report.results[0].decades == result.decades


def _of(manifest, check, number=0):
    return [case["file"] for case in manifest["cases"] if case["check"] == check][number]


def test_a_wrong_result_fails(vectors, answers, manifest):
    file = _of(manifest, "GRP-03")
    y = load_file(answers / file)["y"]
    y[3, 5] += 1
    _change(answers / file, y=y)
    (report,) = verify(vectors, answers)
    assert report.results[0].status == "fail"
    assert report.results[0].detail.startswith(f"{file}, ")
    assert "row 3 of expert" in report.results[0].detail
    assert {r.status for r in report.results[1:]} == {"pass"}


def test_a_related_result_is_judged(vectors, answers, manifest):
    file = _of(manifest, "GRP-15", -1)
    again = load_file(answers / file)["again.y"]
    assert again.dtype == ml_dtypes.bfloat16
    again[0, 0] = np.nextafter(np.float32(again[0, 0]), np.float32(np.inf)) * 2
    _change(answers / file, **{"again.y": again})
    assert _statuses(vectors, answers)["GRP-15"] == "fail"


@pytest.mark.parametrize(
    ("check", "status", "said"),
    [
        ("GRP-03", "fail", "is missing"),
        ("GRP-05", "skipped", "is missing"),
        ("GRP-09", "skipped", "is missing"),
        ("GRP-57", "skipped", "is missing"),
    ],
)
def test_missing_files(vectors, answers, manifest, check, status, said):
    """A failure, unless the check is optional and none of its files are there."""
    for case in manifest["cases"]:
        if case["check"] == check:
            (answers / case["file"]).unlink()
    (report,) = verify(vectors, answers)
    (result,) = [r for r in report.results if r.id == check]
    assert (result.status, said in result.detail) == (status, True)


@pytest.mark.parametrize(
    ("check", "status"),
    [("GRP-05", "pass"), ("GRP-09", "fail"), ("GRP-15", "fail"), ("GRP-57", "fail")],
)
@pytest.mark.parametrize("number", [0, -1])
def test_some_of_the_files(vectors, answers, manifest, check, status, number):
    """Inputs may be declined one by one; gradients and capabilities are there or are not."""
    (answers / _of(manifest, check, number)).unlink()
    assert _statuses(vectors, answers)[check] == status


BROKEN = {
    "no result": ({"y": None, "z": np.zeros((1, 1), np.float32)}, "z is no result"),
    "no results": ({"y": None}, "holds no results"),
    "wrong shape": ({"y": np.zeros((1, 1), np.float32)}, "expected a real floating-point array"),
    "integers": ({"y": np.zeros((1, 1), np.int32)}, "expected a real floating-point array"),
    "something else": ({"why": np.zeros(1, np.float32)}, "why is no result of grouped_matmul"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_results_fail(vectors, answers, manifest, name):
    tensors, said = BROKEN[name]
    _change(answers / _of(manifest, "GRP-13"), **tensors)
    (report,) = verify(vectors, answers)
    (result,) = [r for r in report.results if r.id == "GRP-13"]
    assert result.status == "fail"
    assert said in result.detail


def test_a_missing_result_fails(vectors, answers, manifest):
    """The judge asks for `y`, and the file has a gradient only."""
    for number in range(2):
        _change(answers / _of(manifest, "GRP-15", number), y=None)
    (report,) = verify(vectors, answers)
    (result,) = [r for r in report.results if r.id == "GRP-15"]
    assert result.status == "fail"


@pytest.mark.parametrize("content", [b"", b"text", b"\xff" * 64])
def test_files_that_cannot_be_read_fail(vectors, answers, manifest, content):
    (answers / _of(manifest, "GRP-13")).write_bytes(content)
    (report,) = verify(vectors, answers)
    (result,) = [r for r in report.results if r.id == "GRP-13"]
    assert (result.status, "cannot be read" in result.detail) == ("fail", True)


def test_a_gradient_that_is_absent_is_skipped(vectors, answers, manifest):
    for case in manifest["cases"]:
        if case["check"] == "GRP-58":
            _change(answers / case["file"], **{"grad.w": None})
    assert _statuses(vectors, answers) == dict.fromkeys(FEW, "pass") | {"GRP-58": "skipped"}


def _copy(vectors, folder):
    folder.mkdir()
    for path in vectors.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_changed_vectors_are_refused(vectors, answers, manifest, tmp_path):
    mine = _copy(vectors, tmp_path / "mine")
    _change(mine / _of(manifest, "GRP-13"), x=np.zeros((64, 16), np.float32))
    with pytest.raises(ValueError, match="must be as it was written"):
        verify(mine, answers)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("format", 2, "must be of format 1"),
        ("spec_version", SPEC_VERSION + 1, "spec version"),
        ("cases", None, "must hold a manifest"),
        ("cases", [{"file": "../a", "check": "GRP-13"}], "its files itself"),
        ("cases", [{"file": "a", "check": "GRP-999"}], "'GRP-999'"),
    ],
)
def test_other_manifests_are_refused(vectors, answers, manifest, tmp_path, field, value, said):
    mine = _copy(vectors, tmp_path / "mine")
    (mine / "manifest.json").write_text(json.dumps(manifest | {field: value}))
    with pytest.raises(ValueError, match=said):
        verify(mine, answers)


def test_absent_folders_are_refused(vectors, tmp_path):
    with pytest.raises(ValueError, match="`outputs` must be a folder"):
        verify(vectors, tmp_path / "absent")
    with pytest.raises(ValueError, match=r"must hold a manifest\.json"):
        verify(tmp_path, tmp_path)


RIGHT = {each.op: each for each in reversed(CORRECT)}
# Where the oracle takes its time, some of the checks.
EVERY = {"route": 5, "losses": 4, "layer": 12, "grouped_matmul_mx": 4}
CHECKS = {op: [c.id for c in conformance.checks(op)][:: EVERY.get(op, 1)] for op in RIGHT}


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in RIGHT if op != "grouped_matmul"])
def test_right_kernels_of_every_operation_hold(op, tmp_path, monkeypatch):
    """Inputs, specs and related inputs survive the way through files."""
    folder, outputs = write(tmp_path / "vectors", CHECKS[op], monkeypatch), tmp_path / "outputs"
    outputs.mkdir()
    for entry in json.loads((folder / "manifest.json").read_text())["cases"]:
        check, case = ALL[entry["check"]], case_of(folder, entry)
        if check.needs is not None and not getattr(RIGHT[op], check.needs):
            continue
        found = {}
        others = {} if check.related is None else check.related(case)
        assert list(others) == list(entry["related"])
        for name, each in {
            "": case,
            **{f"{name}.": other for name, other in others.items()},
        }.items():
            results = evaluate(conformance.OPERATIONS[op], RIGHT[op], check.method, each)
            found |= {f"{name}{k}": np.array(result, order="C") for k, result in results.items()}
        assert set(found) <= set(entry["results"])
        save_file(found, outputs / entry["file"])
    for report in verify(folder, outputs):
        wrong = [(r.id, r.status, r.detail) for r in report.results if r.status != "pass"]
        assert [each for each in wrong if each[1] != "skipped"] == []
        assert len(wrong) < len(report.results) / 4
