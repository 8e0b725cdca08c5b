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

import jax
import jax.numpy as jnp


def talks(x, w, group_sizes):
    print("from Python")
    os.write(1, b"from C")
    return jnp.zeros((x.shape[0], w.shape[2]), x.dtype)


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
    done = _run("check", "kernels:talks", "--op", "grouped_matmul", "--json", cwd=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert found["counts"]["fail"] > 0
    assert "from Python" in done.stderr
    assert "from C" in done.stderr


@pytest.mark.slow
def test_interrupt_is_quiet(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    process = subprocess.Popen(
        [*COMMAND, "check", "kernels:sleeps", "--op", "grouped_matmul"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stderr.readline() == "asleep\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, stdout, stderr) == (130, "", "")
