"""Wrong use is one line on standard error and exit status 2, whatever it is."""

import numpy as np
import pytest

import moe_ref.cli._inspect
from cli.checkpoint import D_MODEL
from moe_ref.cli._guard import INTERRUPTED, guarded

INPUTS = {
    "absent.npy": (None, "No such file"),
    "text.npy": (b"hidden states", "must be a .npy file"),
    "empty.npy": (b"", "must be a .npy file"),
    "zip.npy": (b"PK\x03\x04 and so on", "must be a .npy file"),
    "short.npy": (b"\x93NUMPY\x01\x00", "must be a complete .npy file"),
    "pickle.npy": (np.array([{}], dtype=object), "pickled"),
    "integers.npy": (np.ones((2, D_MODEL), np.int64), "got dtype int64"),
    "complex.npy": (np.ones((2, D_MODEL), np.complex64), "got dtype complex64"),
    "wide.npy": (np.ones((2, D_MODEL + 1)), f"d_model={D_MODEL}; got shape (2, {D_MODEL + 1})"),
    "scalar.npy": (np.ones(()), "got shape ()"),
    "no_tokens.npy": (np.ones((0, D_MODEL)), "at least one token"),
    "nan.npy": (np.full((2, D_MODEL), np.nan), "got nan at token 0, column 0"),
    "inf.npy": (np.diag([1.0] * 15 + [np.inf]), "got inf at token 15, column 15"),
    "huge.npy": (np.full((2, D_MODEL), 1e300), "must be finite in float32"),
}


def _refused(result, *words):
    lines = result.stderr.splitlines()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(lines) == 1
    assert lines[0].startswith("moe-ref: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "Missing command"),
        (["chekc"], "'chekc'"),
        (["--nonsense"], "--nonsense"),
        (["check", "--nonsense"], "--nonsense"),
        (["check", "--seed", "one"], "--seed"),
        (["check", "--seed", "-1"], "--seed"),
        (["check", "--budget", "huge"], "--budget"),
        (["check", "a:b", "c:d"], "c:d"),
        (["checks", "--op", "dance"], "dance"),
        (["inspect"], "FOLDER"),
        (["inspect", "somewhere"], "--layer"),
        (["inspect", "nowhere", "--layer", "0"], "nowhere"),
        (["inspect", "somewhere", "--layer", "0", "--tokens", "0"], "--tokens"),
        (["inspect", "somewhere", "--layer", "0", "--dtype", "int8"], "--dtype"),
    ],
)
def test_arguments(moe_ref_command, arguments, word):
    _refused(moe_ref_command(*arguments), word)


@pytest.mark.parametrize("layer", ["0", "2", "-1", "one", "1.5", "decoder.1", ""])
def test_layer(moe_ref_command, checkpoint, layer):
    _refused(moe_ref_command("inspect", checkpoint, f"--layer={layer}"), "layer")


@pytest.mark.parametrize("name", INPUTS)
def test_input(moe_ref_command, checkpoint, tmp_path, name):
    path = tmp_path / name
    content, words = INPUTS[name]
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    result = moe_ref_command("inspect", checkpoint, "--layer", 1, "--input", path)
    _refused(result, name, words)


def test_input_that_is_a_folder(moe_ref_command, checkpoint):
    result = moe_ref_command("inspect", checkpoint, "--layer", 1, "--input", checkpoint)
    _refused(result, "Is a directory")


def test_input_and_tokens(moe_ref_command, checkpoint):
    result = moe_ref_command("inspect", checkpoint, "--layer", 1, "--input", "x.npy", "--tokens", 5)
    _refused(result, "--tokens")


@pytest.mark.parametrize("name", ["load.docx", "absent/load.png"])
def test_plot(moe_ref_command, checkpoint, tmp_path, name):
    pytest.importorskip("matplotlib")
    result = moe_ref_command("inspect", checkpoint, "--layer", 1, "--plot", tmp_path / name)
    _refused(result, name)


def test_truncated_checkpoint(moe_ref_command, checkpoint):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    _refused(moe_ref_command("inspect", checkpoint, "--layer", 1), "model.safetensors")


@pytest.mark.parametrize("debug", [False, True])
def test_our_own_errors(moe_ref_command, checkpoint, monkeypatch, debug):
    def broken(*_, **__):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(moe_ref.cli._inspect, "measure_load", broken)
    if debug:
        monkeypatch.setenv("MOE_REF_DEBUG", "1")
    result = moe_ref_command("inspect", checkpoint, "--layer", 1)
    if debug:
        assert isinstance(result.exception, ZeroDivisionError)
        return
    assert result.exit_code == 70
    assert len(result.stderr.splitlines()) == 1
    assert "ZeroDivisionError: two lines" in result.stderr
    assert "MOE_REF_DEBUG=1" in result.stderr


def test_interrupt_is_quiet(moe_ref_command, checkpoint, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(moe_ref.cli._inspect, "measure_load", interrupted)
    result = moe_ref_command("inspect", checkpoint, "--layer", 1)
    assert (result.exit_code, result.output) == (INTERRUPTED, "")


def test_exit_of_others_is_not_success():
    def leave():
        raise SystemExit(0)

    assert guarded(leave) not in (0, 1)
