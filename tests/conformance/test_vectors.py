"""Golden vectors: what is written."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from conformance.golden import ALL, FEW, write
from moe_ref import conformance, oracle
from moe_ref.conformance import _vectors
from moe_ref.spec import SPEC_VERSION, LayerSpec


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
    folders = [write(tmp_path / n, first.values(), monkeypatch) for n in "12"]
    one, two = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert one == two
    cases = json.loads(one["manifest.json"])["cases"]
    assert {case["op"] for case in cases} == set(conformance.OPERATIONS)
    for case in cases:
        if case["spec"] is not None:
            LayerSpec.from_dict(case["spec"])
    valued = {case["op"] for case in cases if case["expected"]}
    assert valued == {"grouped_matmul", "grouped_matmul_mx", "route", "losses", "layer", "quantize"}


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


def test_the_manifest_is_documented(manifest):
    text = (Path(__file__).parents[2] / "docs" / "vectors.md").read_text()
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*manifest, *manifest["cases"][0]}
    assert f"format {_vectors.FORMAT_VERSION}" in text
