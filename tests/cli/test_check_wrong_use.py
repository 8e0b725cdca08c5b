"""Wrong use of `moe-ref check`: refused in one line, before any work is done."""

import numpy as np
import pytest

from cli.verdicts import HOLDS, TARGET, save_input

TARGETS = {
    "syntax": ("def f(:", "SyntaxError"),
    "raises": ("raise RuntimeError('no GPU\\nhere')", "no GPU"),
    "leaves": ("raise SystemExit(0)", "leaves"),
    "imports": ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
    "other": ("x = 1", "no 'f'"),
    "number": ("f = 1", "int"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_bad_target(moe_ref_command, tmp_path, monkeypatch, name):
    content, word = TARGETS[name]
    (tmp_path / f"target_{name}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    result = moe_ref_command("check", f"target_{name}:f", "--op", "grouped_matmul")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr


@pytest.mark.parametrize("target", ["jax.lax", "jax.lax:", ":f", "absent_package:f"])
def test_bad_target_name(moe_ref_command, target):
    result = moe_ref_command("check", target, "--op", "grouped_matmul")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("target", [".bad:x", "a..b:x", "a:b c", "a:.b"])
def test_a_target_that_is_no_name(moe_ref_command, target):
    result = moe_ref_command("check", target, "--op", "grouped_matmul")
    said = f"`target` must be of the form package.module:name; got {target!r}."
    assert (result.exit_code, result.stderr) == (2, f"moe-ref: {said}\n")


@pytest.mark.parametrize("op", [[], ["--op", "dance"]])
def test_bad_operation(moe_ref_command, op):
    result = moe_ref_command("check", "jax.lax:ragged_dot", *op)
    assert result.exit_code == 2
    assert "grouped_matmul" in result.stderr


def test_unknown_check(moe_ref_command):
    result = moe_ref_command(*TARGET, "--only", "GRP-99")
    assert result.exit_code == 2
    assert "GRP-99" in result.stderr


@pytest.mark.parametrize("given", ["GRP-2", "grp-02", "GRP02"])
def test_a_check_that_was_probably_meant(moe_ref_command, given):
    result = moe_ref_command(*TARGET, "--only", given)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"got {given!r}; did you mean GRP-02?\n")


DECLARED = """
from moe_ref.conformance import Implementation
f = Implementation(name="mine", op="route", function=print, dtypes=("float32",))
"""


def test_declared_operation(moe_ref_command, judged, tmp_path, monkeypatch):
    (tmp_path / "target_declared.py").write_text(DECLARED)
    monkeypatch.syspath_prepend(tmp_path)
    calls = judged(HOLDS)
    assert moe_ref_command("check", "target_declared:f").exit_code == 0
    assert moe_ref_command("check", "target_declared:f", "--op", "route").exit_code == 0
    assert [name for name, _ in calls] == ["mine", "mine"]
    refused = moe_ref_command("check", "target_declared:f", "--op", "layer")
    assert refused.exit_code == 2
    assert "`op` must be 'route'" in refused.stderr


@pytest.mark.parametrize("op", ["dance"])
def test_bad_operation_of_what_is_shipped(moe_ref_command, op):
    result = moe_ref_command("check", "--op", op)
    assert result.exit_code == 2
    assert "grouped_matmul" in result.stderr


def test_save_that_is_a_file(moe_ref_command, tmp_path):
    (tmp_path / "file").touch()
    result = moe_ref_command(*TARGET, "--save", tmp_path / "file")
    assert result.exit_code == 2
    assert "`--save` must be a folder" in result.stderr


def test_unwritable_page(moe_ref_command, judged, tmp_path):
    judged(HOLDS)
    result = moe_ref_command(*TARGET, "--html", tmp_path / "absent" / "report.html")
    assert result.exit_code == 2
    assert "report.html" in result.stderr


@pytest.mark.parametrize("option", ["--html", "--junit", "--resume"])
@pytest.mark.parametrize("place", ["absent/file", "."])
def test_files_that_cannot_be(moe_ref_command, judged, tmp_path, option, place):
    calls = judged(HOLDS)
    result = moe_ref_command(*TARGET, option, tmp_path / place)
    assert result.exit_code == 2
    assert f"`{option}` must be a file" in result.stderr
    assert calls == []


def test_results_of_something_else(moe_ref_command, judged, tmp_path):
    calls = judged(HOLDS)
    (tmp_path / "notes.txt").write_text("do not append to me")
    result = moe_ref_command(*TARGET, "--resume", tmp_path / "notes.txt")
    assert result.exit_code == 2
    assert "must be a file of results" in result.stderr
    assert (tmp_path / "notes.txt").read_text() == "do not append to me"
    assert calls == []


@pytest.mark.parametrize(
    ("text", "word"),
    [("GRP-999 typing error", "GRP-999"), ("GRP-01", "a reason"), (None, "absent")],
)
def test_known_failures(moe_ref_command, judged, tmp_path, text, word):
    calls = judged(HOLDS)
    path = tmp_path / "absent.txt"
    if text is not None:
        path.write_text(text)
    result = moe_ref_command(*TARGET, "--xfails", path)
    assert result.exit_code == 2
    assert word in result.stderr
    assert calls == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file."),
        (b"", "it is no archive."),
        (b"PK\x03\x04", "it is no archive."),
        (b"text", "it is no archive."),
        (b"\x93NUMPY\x01\x00", "it is no archive."),
        (np.zeros(3), "it is another archive: __case__ is not a file in the archive."),
    ],
)
def test_replay_of_nothing(moe_ref_command, tmp_path, content, said):
    path = tmp_path / "failure.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, x=content)
    result = moe_ref_command(*TARGET, "--replay", path)
    refused = f"moe-ref: `{path}` must be a saved failure, an .npz that `save` wrote; {said}\n"
    assert (result.exit_code, result.stderr) == (2, refused)


def test_replay_of_another_operation(moe_ref_command, tmp_path):
    path = save_input(tmp_path)
    result = moe_ref_command("check", "--op", "route", "--replay", path)
    assert result.exit_code == 2
    assert "GRP-13" in result.stderr


@pytest.mark.parametrize("option", [("--only", "GRP-13"), ("--save", "."), ("--resume", "results")])
def test_replay_tries_one_input(moe_ref_command, tmp_path, option):
    result = moe_ref_command(*TARGET, "--replay", save_input(tmp_path), *option)
    assert result.exit_code == 2
    assert "`--replay` must come without" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--arrays", "numpy"], "TARGET"),
        (["--op", "route", "--numerics", "tensor-cores"], "--op grouped_matmul"),
        (["--arrays", "cupy"], "--arrays"),
        (["--time-limit", "0"], "--time-limit"),
        (["--memory-limit", "-1"], "--memory-limit"),
    ],
)
def test_options(moe_ref_command, arguments, word):
    result = moe_ref_command("check", *arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert word in result.stderr


def test_arrays_of_what_declares_its_own(moe_ref_command, judged, tmp_path, monkeypatch):
    (tmp_path / "target_arrays.py").write_text(DECLARED)
    monkeypatch.syspath_prepend(tmp_path)
    result = moe_ref_command("check", "target_arrays:f", "--arrays", "numpy")
    assert result.exit_code == 2
    assert "`arrays` must be 'jax'" in result.stderr
