"""`moe-ref` as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import moe_ref

COMMAND = [sys.executable, "-m", "moe_ref"]
ENVIRONMENT = {**os.environ, "COLUMNS": "80"}

KERNELS = """
import os
import sys
import time

import jax.numpy as jnp
import numpy as np


def talks(x, w, group_sizes):
    print("from Python")
    os.write(1, b"from C")
    return jnp.zeros((x.shape[0], w.shape[2]), x.dtype)


def sleeps_once(x, w, group_sizes):
    if len(x) and not os.path.exists("slept"):
        open("slept", "w").close()
        sleeps(x, w, group_sizes)
    return np.zeros((x.shape[0], w.shape[2]), x.dtype)


def sleeps(x, w, group_sizes):
    print("asleep", file=sys.stderr, flush=True)
    time.sleep(600)
"""


def _run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=ENVIRONMENT, **options
    )


def test_version():
    done = _run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"moe-ref {moe_ref.__version__}\n",
        "",
    )


def test_help_imports_nothing_heavy():
    code = "import sys; from moe_ref.cli._main import app\ntry: app(['--help'])\nfinally: "
    code += "print(sorted({'matplotlib', 'hypothesis', 'pytest', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["chekc"], ["check", "absent:f", "--op", "route"]])
def test_wrong_use(arguments):
    done = _run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("moe-ref: ")


def test_ascii_output(checkpoint):
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    command = [*COMMAND, "inspect", str(checkpoint), "--layer", "1"]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"####" in done.stdout


def test_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        done = subprocess.run(
            [*COMMAND, "checks", "--json"], stdout=stdout, stderr=subprocess.PIPE, text=True
        )
    assert done.stderr == ""
    assert done.returncode not in (0, 1, 2)


@pytest.mark.slow
def test_json_of_a_kernel_that_talks(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    options = ("--op", "grouped_matmul", "--only", "GRP-02", "--json")
    done = _run("check", "kernels:talks", *options, cwd=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert found["counts"]["fail"] > 0
    assert "from Python" in done.stderr
    assert "from C" in done.stderr


# A shell's background jobs ignore Ctrl-C, and so do their children.
_HEARS_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def _interrupted(*arguments, cwd):
    """Start `moe-ref check` of a kernel that sleeps, press Ctrl-C, and give status and output."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HEARS_CTRL_C, *COMMAND, "check", *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr.readline() == "asleep\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        return (*process.communicate(timeout=60), process.returncode)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_interrupt_is_quiet(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    done = _interrupted("kernels:sleeps", "--op", "grouped_matmul", cwd=tmp_path)
    assert done == ("", "", 130)


@pytest.mark.slow
def test_interrupt_says_how_to_go_on(tmp_path):
    """What was judged is kept, what was interrupted is not, and the same command goes on."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    options = ["kernels:sleeps_once", "--op", "grouped_matmul", "--resume", "results"]
    options += ["--only", "GRP-05", "--only", "GRP-13", "--arrays", "numpy"]
    stdout, stderr, status = _interrupted(*options, cwd=tmp_path)
    assert (status, stdout) == (130, "")
    assert stderr == f"moe-ref: to go on: moe-ref check {' '.join(options)}\n"
    assert _kept(tmp_path / "results") == [("GRP-05", "pass")]
    done = _run("check", *options, cwd=tmp_path)
    assert done.returncode == 1
    assert "2 checks: 1 pass, 1 fail" in done.stdout
    assert _kept(tmp_path / "results") == [("GRP-05", "pass"), ("GRP-13", "fail")]


def _kept(path):
    results = [json.loads(line)["result"] for line in path.read_text().splitlines()]
    return [(result["id"], result["status"]) for result in results]
