"""The doors for pytest: `pytest --pyargs moe_ref.conformance`, and `conformance.parametrize`."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import _moe_ref_pytest
from conformance import doors_kernels
from moe_ref import conformance

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "_moe_ref_pytest")
SUITE = (*PLUGIN, "--pyargs", "moe_ref.conformance", "-p", "no:cacheprovider")
RIGHT = "--moe-impl=doors_kernels:right"
WRONG = "--moe-impl=doors_kernels:next_expert"
DECLARED = ("--moe-op=grouped_matmul", "--moe-arrays=numpy")
FEW = ("-k", "GRP-01 or GRP-05 or GRP-09 or GRP-13")


def _pytest(*arguments, cwd, **variables):
    """Run pytest in a folder that knows nothing of this repository."""
    paths = [str(ROOT / "src"), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "80"} | variables
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def _outcomes(text):
    line = [line for line in text.splitlines() if re.search(r"\d+ \w+.* in [\d.]+s", line)][-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", line)}


def test_checks_are_tests(tmp_path):
    """A test each, named after implementation and check, all in one process of the kernel."""
    log = tmp_path / "log"
    code, text = _pytest(*SUITE, RIGHT, *DECLARED, *FEW, "-vrs", cwd=tmp_path, KERNEL_LOG=str(log))
    assert code == 0, text
    assert _outcomes(text).items() >= {"passed": 3, "skipped": 1}.items()
    for check in ("GRP-01", "GRP-05", "GRP-13"):
        assert f"[doors_kernels:right-{check}] PASSED" in text
    assert "zero_tail is not declared" in " ".join(text.split())
    calls = log.read_text().split()
    assert len(calls) >= 3
    assert len(set(calls)) == 1


@pytest.mark.slow
def test_checks_run_on_two_workers(tmp_path):
    log = tmp_path / "log"
    code, text = _pytest(*SUITE, RIGHT, *DECLARED, *FEW, "-n2", cwd=tmp_path, KERNEL_LOG=str(log))
    assert code == 0, text
    assert _outcomes(text).items() >= {"passed": 3, "skipped": 1}.items()
    assert len(set(log.read_text().split())) <= 2


@pytest.mark.slow
def test_a_failure_says_what_is_wrong(tmp_path):
    xfails = tmp_path / "xfails.txt"
    xfails.write_text("GRP-13 the next expert\nGRP-05 a surprise\nGRP-09 skipped all the same\n")
    code, text = _pytest(
        *SUITE, RIGHT, WRONG, *DECLARED, f"--moe-xfails={xfails}", *FEW, cwd=tmp_path
    )
    assert code == 1, text
    # Of the wrong one GRP-13 is expected to fail; GRP-05 holds for both, GRP-13 for the right one.
    wanted = {"failed": 3, "passed": 2, "xfailed": 1, "skipped": 2}
    assert _outcomes(text).items() >= wanted.items(), text
    assert "[XPASS(strict)] a surprise" in text
    assert "Traceback" not in text


def test_the_message_is_short_and_complete(tmp_path):
    code, text = _pytest(*SUITE, WRONG, *DECLARED, "-k", "GRP-13", cwd=tmp_path)
    assert code == 1
    body = text.partition("= FAILURES =")[2].partition("= short test summary")[0]
    lines = body.splitlines()[2:-1]
    assert lines[0] == "Small integers are multiplied exactly."
    assert lines[1].startswith("fail: integers, float32: row ")
    assert lines[2] == "smallest input found:"
    scope: dict = {}
    exec("\n".join(lines[3:]), scope)
    assert scope["x"].size < 9
    right, wrong = (
        kernel(scope["x"], scope["w"], scope["group_sizes"])
        for kernel in (doors_kernels.right, doors_kernels.next_expert)
    )
    assert (right != wrong).any()


NOTHING = "`--moe-impl` must say what moe_ref.conformance judges"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"), [((), NOTHING), ((RIGHT,), "`op` must be given for a callable")]
)
def test_wrong_use_ends_pytest(tmp_path, arguments, said):
    code, text = _pytest(*SUITE, *arguments, cwd=tmp_path)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert said in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_nothing_to_judge_by_path(tmp_path):
    suite = ROOT / "src" / "moe_ref" / "conformance" / "test_conformance.py"
    code, text = _pytest(*PLUGIN, "-p", "no:cacheprovider", suite, cwd=tmp_path)
    assert code != 0
    assert NOTHING in text
    assert "Traceback" not in text


class _Config:
    """As much of pytest's configuration as the plugin asks for."""

    def __init__(self, args=(), **options):
        none = dict.fromkeys(("moe_op", "moe_arrays", "moe_xfails"))
        options = {"moe_impl": [], "moe_budget": "smoke", "moe_seed": 0} | none | options
        self.args, self.stash = args, pytest.Stash()
        self.option = types.SimpleNamespace(**options)


KERNEL = "conformance.doors_kernels:right"
WRONG_USE = {
    NOTHING: {"args": ["a", "moe_ref.conformance::test_conformance"]},
    "`op` must be given": {"moe_impl": [KERNEL]},
    "`op` must be one of": {"moe_impl": [KERNEL], "moe_op": "dance"},
    "`arrays` must be one of": {"moe_impl": [KERNEL], "moe_op": "route", "moe_arrays": "cupy"},
    "has no 'absent'": {"moe_impl": [KERNEL[:-5] + "absent"], "moe_op": "route"},
    "must be a text file": {"moe_impl": [KERNEL], "moe_op": "route", "moe_xfails": "absent"},
}


@pytest.mark.parametrize("said", WRONG_USE)
def test_wrong_use(said):
    with pytest.raises(pytest.UsageError, match=re.escape(said)):
        _moe_ref_pytest.pytest_configure(_Config(**WRONG_USE[said]))


def test_other_runs_are_left_alone():
    config = _Config(args=["tests", "moe_ref.conformance_of_mine"])
    _moe_ref_pytest.pytest_configure(config)
    assert config.stash.get(_moe_ref_pytest.CASES, None) is None


TESTS = """
import doors_kernels
import numpy as np
from moe_ref import conformance

def mine(x, w, group_sizes):
    return doors_kernels.right(x, w, group_sizes)

kernel = conformance.Implementation(
    name="mine", op="grouped_matmul", function=mine, arrays="numpy", dtypes=("float32",)
)

@conformance.parametrize(kernel, only=["GRP-05", "GRP-09", "GRP-13"], xfails={"GRP-05": "none"})
def test_kernel(check):
    check()
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_parametrize(tmp_path, mode):
    """In importlib mode a test module cannot be imported by name: its kernel runs in the judge."""
    (tmp_path / "test_mine.py").write_text(TESTS)
    options = ("-v", f"--import-mode={mode}", "-p", "no:cacheprovider")
    code, text = _pytest(*options, cwd=tmp_path)
    assert code == 1, text
    wanted = {"failed": 1, "passed": 1, "skipped": 1}
    assert _outcomes(text).items() >= wanted.items()
    assert "test_kernel[mine-GRP-13] PASSED" in text
    assert "[XPASS(strict)] none" in text


@conformance.parametrize(
    doors_kernels.next_expert,
    op="grouped_matmul",
    only=["GRP-05", "GRP-13"],
    xfails={"GRP-13": "the next expert"},
)
def test_parametrize_is_a_mark(check):
    check()


def test_parametrize_refuses():
    with pytest.raises(ValueError, match="'GRP-999' is none"):
        conformance.parametrize(doors_kernels.right, op="route", xfails={"GRP-999": "typing error"})
    with pytest.raises(ValueError, match="together with `op`"):
        conformance.parametrize(doors_kernels.right)
    with pytest.raises(ValueError, match="`only` must be one of RTE-01"):
        conformance.parametrize(doors_kernels.right, op="route", only=["GRP-01"])


def test_the_plugin_leaves_the_package_alone(tmp_path):
    """A conftest.py may still install jaxtyping's import hook, before moe_ref is imported."""
    (tmp_path / "conftest.py").write_text("import sys; assert 'moe_ref' not in sys.modules")
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass")
    code, text = _pytest(*PLUGIN, "-p", "no:cacheprovider", cwd=tmp_path)
    assert code == 0, text


@pytest.mark.parametrize("module", ["moe_ref", "moe_ref.conformance", "moe_ref.conformance.suite"])
def test_imports_no_test_tool(module):
    code = f"import sys, {module}; print({{'pytest', 'hypothesis'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
