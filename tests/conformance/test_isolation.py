"""Kernels in a process of their own: crashes, hangs, prints and bad results are failed checks."""

import sys

import pytest

from moe_ref import conformance

KERNELS = """
import os, signal, sys, time
import numpy as np

def _y(x, w):
    return np.zeros((x.shape[0], w.shape[2]), x.dtype)

def exits(x, w, group_sizes): os._exit(3)
def leaves(x, w, group_sizes): sys.exit(0)
def crashes(x, w, group_sizes): os.kill(os.getpid(), signal.SIGSEGV)
def sleeps(x, w, group_sizes): time.sleep(60)
def raises(x, w, group_sizes): raise RuntimeError("out of luck")
def refuses(x, w, group_sizes): raise ValueError("no such shape")
def ravels(x, w, group_sizes): return _y(x, w).ravel()
def gives_none(x, w, group_sizes): return None
def gives_text(x, w, group_sizes): return np.full((x.shape[0], w.shape[2]), "a")
def gives_complex(x, w, group_sizes): return _y(x, w) + 1j
"""
SAID = {
    "exits": "the kernel's process died (exited, 3)",
    "leaves": "SystemExit",
    "crashes": "killed by signal 11",
    "sleeps": "no answer within 1 seconds",
    "raises": "RuntimeError: out of luck",
    "refuses": "declined: ValueError: no such shape",
    "ravels": "y is float32[",
    "gives_none": "y is object[]",
    "gives_text": "y is str",
    "gives_complex": "y is complex64[",
}


@pytest.mark.parametrize(("name", "said"), SAID.items())
def test_a_broken_kernel_is_a_failed_check(name, said, tmp_path, monkeypatch):
    (tmp_path / "broken_kernels.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("broken_kernels", None)
    kernel = conformance.load_target(f"broken_kernels:{name}", op="grouped_matmul")
    limit = 1 if name == "sleeps" else 60
    report = conformance.run(
        kernel, only=["GRP-13"], time_limit=limit, save=tmp_path / "saved", shrink_seconds=0
    )
    (result,) = report.results
    assert (result.status, result.proven) == ("fail", True)
    assert said in result.detail
    assert result.saved is not None
    assert (tmp_path / "saved").joinpath(result.saved).exists()


@pytest.mark.parametrize("statement", ["import os; os._exit(0)", "import os; os.abort()"])
def test_a_module_that_ends_the_process_is_wrong_use(statement, tmp_path, monkeypatch):
    (tmp_path / "ends_the_process.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="ended the process"):
        conformance.load_target("ends_the_process:f", op="route")


def test_a_script_is_not_run_again(tmp_path):
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(
        "import functools\n"
        "from moe_ref import conformance\n"
        "from moe_ref.grouped import grouped_matmul\n"
        "print('once')\n"
        "def mine(x, w, group_sizes):\n"
        "    return grouped_matmul(x, w, group_sizes, implementation='loop')\n"
        "for kernel in (mine, functools.partial(mine), grouped_matmul):\n"
        "    print(conformance.run(kernel, op='grouped_matmul', only=['GRP-13']).ok)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["once", "True", "True", "True"]
