"""`moe-ref vectors` and `moe-ref verify`; what they write and judge is in conformance."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from moe_ref.conformance import _vectors, checks


@pytest.fixture
def written(moe_ref_command, monkeypatch, tmp_path):
    """The inputs of two small checks, and right results."""
    few = [check for check in checks("grouped_matmul") if check.id in ("GRP-05", "GRP-13")]
    monkeypatch.setattr(_vectors, "checks", lambda op: tuple(few))
    result = moe_ref_command("vectors", tmp_path / "vectors", "--op", "grouped_matmul")
    assert result.exit_code == 0
    found = json.loads((tmp_path / "vectors" / "manifest.json").read_text())["cases"]
    assert result.stdout.startswith(f"{len(found)} inputs in ")
    (tmp_path / "outputs").mkdir()
    for case in found:
        tensors = load_file(tmp_path / "vectors" / case["file"])
        truth = tensors["expected.y.value"].astype(tensors["x"].dtype)
        save_file({"y": truth}, tmp_path / "outputs" / case["file"])
    return tmp_path / "vectors", tmp_path / "outputs"


def test_right_results(moe_ref_command, written):
    result = moe_ref_command("verify", *written)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[0] == "outputs  grouped_matmul"
    assert result.stdout.splitlines()[-1] == "2 checks: 2 pass"


def test_wrong_results(moe_ref_command, written, tmp_path):
    file = next(written[1].glob("GRP-13-*"))
    save_file({"y": np.zeros_like(load_file(file)["y"])}, file)
    files = ("--html", tmp_path / "report.html", "--junit", tmp_path / "report.xml")
    result = moe_ref_command("verify", *written, *files, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["counts"]["fail"] == 1
    assert file.name in (tmp_path / "report.html").read_text()
    assert file.name in (tmp_path / "report.xml").read_text()
    (tmp_path / "xfails.txt").write_text("GRP-13 zeros")
    known = moe_ref_command("verify", *written, "--xfails", tmp_path / "xfails.txt")
    assert known.exit_code == 0
    assert known.stdout.splitlines()[-1] == "2 checks: 1 pass, 1 xfail"


def _refused(result, word):
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr


def test_wrong_use(moe_ref_command, tmp_path):
    (tmp_path / "file").touch()
    _refused(moe_ref_command("vectors", tmp_path), "`DIR` must be empty or absent")
    _refused(moe_ref_command("vectors", tmp_path / "file"), "`DIR` must be empty or absent")
    _refused(moe_ref_command("vectors", tmp_path / "file" / "a"), "`DIR` must be writable")
    _refused(moe_ref_command("vectors", tmp_path / "new", "--op", "dance"), "dance")
    _refused(moe_ref_command("verify", tmp_path, tmp_path / "absent"), "must be a folder")
    _refused(moe_ref_command("verify", tmp_path, tmp_path), "manifest.json")
    assert not (tmp_path / "new").exists()
