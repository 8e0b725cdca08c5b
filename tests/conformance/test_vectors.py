"""Golden vectors: what is written, and the judgement of what another program made of it."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from moe_ref import conformance, oracle
from moe_ref.conformance import _vectors
from moe_ref.conformance._verify import verify
from moe_ref.spec import SPEC_VERSION, LayerSpec

# Values, an optional check, a declared capability, integers, two calls, gradients.
FEW = ("GRP-03", "GRP-05", "GRP-09", "GRP-13", "GRP-15", "GRP-57", "GRP-58")
ALL = {check.id: check for check in conformance.checks()}


def _write(folder, ids, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_vectors, "checks", lambda op: tuple(ALL[each] for each in ids))
        _vectors.write_vectors(folder)
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return _write(tmp_path_factory.mktemp("vectors") / "new", FEW, monkeypatch)


@pytest.fixture(scope="module")
def manifest(vectors):
    return json.loads((vectors / "manifest.json").read_text())


def _grouped(tensors, prefix, vjp):
    """A grouped matmul as another program has it: from tensors to tensors."""
    x, w = (tensors[prefix + name].astype(np.float32) for name in ("x", "w"))
    out = {"y": np.zeros((len(x), w.shape[2]), np.float32)}
    if vjp:
        out |= {"grad.x": np.zeros_like(x), "grad.w": np.zeros_like(w)}
    start = 0
    for expert, size in enumerate(tensors[prefix + "group_sizes"].tolist()):
        rows = slice(start, start + size)
        out["y"][rows] = x[rows] @ w[expert]
        if vjp:
            dy = tensors[prefix + "cotangent"][rows].astype(np.float32)
            out["grad.x"][rows], out["grad.w"][expert] = dy @ w[expert].T, x[rows].T @ dy
        start += size
    return {f"{prefix}{k}": v.astype(tensors[prefix + "x"].dtype) for k, v in out.items()}


@pytest.fixture
def answers(vectors, manifest, tmp_path):
    """A folder of right results."""
    folder = tmp_path / "answers"
    folder.mkdir()
    for case in manifest["cases"]:
        tensors, vjp = load_file(vectors / case["file"]), case["method"] == "vjp"
        found = _grouped(tensors, "", vjp)
        for name in case["related"]:
            found |= _grouped(tensors, f"{name}.", vjp)
        assert {k: list(v.shape) for k, v in found.items()} == {
            k: v["shape"] for k, v in case["results"].items()
        }
        save_file(found, folder / case["file"])
    return folder


def _statuses(vectors, answers):
    return {r.id: r.status for report in verify(vectors, answers) for r in report.results}


def _change(path, **tensors):
    found = {k: v for k, v in (load_file(path) | tensors).items() if v is not None}
    save_file(found, path)


# What is written


def test_two_runs_write_the_same_bytes(tmp_path):
    """In processes whose sets and dicts are ordered differently."""
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "moe_ref", "vectors", seed, "--op", "dispatch_combine"]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in "12")
    assert one == two
    assert len(one) > 100


def test_every_operation_can_be_written(tmp_path, monkeypatch):
    first = {check.op: check.id for check in reversed(conformance.checks())}
    folders = [_write(tmp_path / n, first.values(), monkeypatch) for n in "12"]
    one, two = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert one == two
    cases = json.loads(one["manifest.json"])["cases"]
    assert {case["op"] for case in cases} == set(conformance.OPERATIONS)
    for case in cases:
        if case["spec"] is not None:
            LayerSpec.from_dict(case["spec"])
    valued = {case["op"] for case in cases if case["expected"]}
    assert valued == {"grouped_matmul", "route", "losses", "layer"}


def test_manifest(vectors, manifest):
    assert manifest["format"] == _vectors.FORMAT_VERSION
    assert manifest["spec_version"] == SPEC_VERSION
    assert {case["check"] for case in manifest["cases"]} == set(FEW)
    assert {case["dtype"] for case in manifest["cases"]} == {"float32", "bfloat16"}
    files = [case["file"] for case in manifest["cases"]]
    assert sorted([*files, "manifest.json"]) == sorted(path.name for path in vectors.iterdir())
    for case in manifest["cases"]:
        check = ALL[case["check"]]
        found = (case["statement"], case["kind"], case["method"], case["op"])
        assert found == (check.statement, check.kind, check.method, check.op)
        data = (vectors / case["file"]).read_bytes()
        assert case["sha256"] == hashlib.sha256(data).hexdigest()
        names = set(load_file(vectors / case["file"]))
        assert {f"expected.{name}" for name in case["expected"]} <= names
        assert {f"{name}.x" for name in case["related"]} <= names
    assert {case["check"] for case in manifest["cases"] if case["optional"]} == {
        "GRP-05",
        "GRP-09",
        "GRP-15",
        "GRP-57",
        "GRP-58",
    }


@pytest.mark.parametrize("check", ["GRP-03", "GRP-57", "GRP-58"])
def test_expected_values_are_the_oracle_s(vectors, manifest, check):
    for case in (each for each in manifest["cases"] if each["check"] == check):
        tensors = load_file(vectors / case["file"])
        x, w, sizes = (tensors[name] for name in ("x", "w", "group_sizes"))
        assert x.dtype == np.dtype(case["dtype"])
        if check == "GRP-03":
            name, truth = "y", oracle.grouped_matmul(x, w, sizes)
        else:
            name = case["needs"][0]
            pulled = oracle.grouped_matmul_vjp(x, w, sizes, tensors["cotangent"])
            truth = getattr(pulled, name.removeprefix("grad."))
        np.testing.assert_array_equal(tensors[f"expected.{name}.value"], truth.value)
        np.testing.assert_array_equal(tensors[f"expected.{name}.bound"], truth.bound)


def test_a_folder_is_not_mixed(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match="must be empty or absent"):
        _vectors.write_vectors(tmp_path)


# What is judged


def test_right_results_hold(vectors, answers):
    (report,) = verify(vectors, answers)
    assert [(r.id, r.status) for r in report.results] == [(each, "pass") for each in FEW]
    assert {r.implementation for r in report.results} == {"answers"}
    # The judge of the kernels judges: the same kernel has the same ratio.
    kernel = conformance.Implementation(
        name="k",
        op="grouped_matmul",
        function=lambda x, w, s: _grouped({"x": x, "w": w, "group_sizes": s}, "", False)["y"],
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


def test_the_manifest_is_documented(manifest):
    text = (Path(__file__).parents[2] / "docs" / "vectors.md").read_text()
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*manifest, *manifest["cases"][0]}
    assert f"format {_vectors.FORMAT_VERSION}" in text
