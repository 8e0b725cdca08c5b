"""Kernels in a process of their own: crashes, hangs, floods and bad results are failed checks."""

import subprocess
import sys
from multiprocessing import Pipe

import numpy as np
import pytest

from conformance import broken_kernels
from conformance.broken_kernels import BAD_RESULTS, BREAKS, Breaks
from moe_ref import conformance
from moe_ref.conformance._saved import load_case
from moe_ref.conformance._worker import Outcome, _send


def _kernel(function, **declared):
    return conformance.Implementation(
        name="mine", op="grouped_matmul", function=function, arrays="numpy", **declared
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_kernel_is_a_failed_check(how, tmp_path):
    """GRP-05 has no rows, GRP-13 has: the input is saved, and the run goes on to the end."""
    report = conformance.run(
        _kernel(Breaks(how)),
        only=["GRP-05", "GRP-13"],
        time_limit=3 if how in ("sleeps", "spins") else 60,
        memory_limit=2**29,
        save=tmp_path,
        shrink_seconds=0,
    )
    broken, after = report.results
    assert (broken.id, broken.status, broken.proven) == ("GRP-05", "fail", True)
    assert BREAKS[how][1] in broken.detail
    saved = load_case(broken.saved)
    assert saved.check == "GRP-05"
    assert len(saved.case.arrays["x"]) == 0
    assert (after.id, after.status) == ("GRP-13", "pass")


def test_a_crash_after_some_calls_costs_one_check():
    """GRP-04 has three inputs and more, GRP-05 two: its process is a new one."""
    kernel = _kernel(broken_kernels.third_call_crashes, dtypes=("float32",))
    report = conformance.run(kernel, only=["GRP-04", "GRP-05"], shrink_seconds=0)
    crashed, after = report.results
    assert (crashed.id, crashed.status, crashed.cases) == ("GRP-04", "fail", 3)
    assert "killed by signal 11" in crashed.detail
    assert (after.id, after.status, after.cases) == ("GRP-05", "pass", 2)


@pytest.mark.parametrize(
    ("function", "said"), BAD_RESULTS.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_bad_result_is_a_failed_check(function, said):
    # A lambda cannot be pickled, so it runs in this process: no start-up for each kernel.
    kernel = _kernel(lambda *arrays: function(*arrays))
    (result,) = conformance.run(kernel, only=["GRP-13"], shrink_seconds=0).results
    assert (result.status, result.proven) == ("fail", True)
    assert said in result.detail


def test_an_interrupt_in_this_process_ends_the_run():
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conformance.run(_kernel(interrupted), only=["GRP-13"], shrink_seconds=0)


@pytest.mark.parametrize("how", ["raises_base", "raises_interrupt", "raises_mute"])
def test_what_a_kernel_raises_is_no_end_of_its_process(how, capfd):
    report = conformance.run(_kernel(Breaks(how)), only=["GRP-05"], shrink_seconds=0)
    assert BREAKS[how][1] in report.results[0].detail
    assert "Traceback" not in capfd.readouterr().err


def test_results_without_memory_to_send_them_are_a_failure():
    ours, theirs = Pipe()
    with ours, theirs:
        _send(theirs, {"": Outcome(outputs={"y": np.broadcast_to(np.float32(0), 2**48)})})
        said = "results of 1.05e+06 GiB could not be sent: no memory"
        assert ours.recv() == Outcome(broken=said)


@pytest.mark.parametrize("statement", ["import os; os._exit(0)", "import os; os.abort()"])
def test_a_module_that_ends_the_process_is_wrong_use(statement, tmp_path, monkeypatch):
    (tmp_path / "ends_the_process.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="ended the process"):
        conformance.load_target("ends_the_process:f", op="route")


@pytest.mark.slow
def test_a_script_is_not_run_again(tmp_path):
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
