"""`moe-ref check` with verdicts made up here; what is judged for real is in test_process.py."""

import dataclasses
import json
import math

import pytest

from moe_ref import conformance
from moe_ref.cli._results import ratio
from moe_ref.conformance import Report, Result

LONG = "x = " + "1.25, " * 40


def _result(status, number=1, **fields):
    fields = {"implementation": "thing", "op": "grouped_matmul", **fields}
    return Result(id=f"GRP-{number:02}", statement="Rows are right.", status=status, **fields)


HOLDS = _result("pass", 1, ratio=0.123456)
FAILS = _result(
    "fail", 2, ratio=12345.678, detail="row 3, column 2: [red]1[/red]", counterexample=LONG
)
SKIPS = _result("skipped", 3, detail="gradients are declared absent")
CANNOT = _result("cannot tell", 4, detail="the bound exceeds the signal")


@pytest.fixture
def judged(monkeypatch):
    """Replace the verdicts; return what was asked for."""
    calls = []

    def install(*results):
        def run(implementation, *, progress, **options):
            calls.append((implementation.name, options))
            progress(0, 1, "GRP-01")
            print("a kernel that talks")
            return Report(
                tuple(dataclasses.replace(r, implementation=implementation.name) for r in results)
            )

        monkeypatch.setattr(conformance, "run", run)
        return calls

    return install


TARGET = ("check", "jax.lax:ragged_dot", "--op", "grouped_matmul")


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([HOLDS], 0),
        ([HOLDS, SKIPS], 0),
        ([HOLDS, FAILS], 1),
        ([HOLDS, CANNOT], 1),
        ([SKIPS], 1),
    ],
)
def test_exit_status(moe_ref_command, judged, results, code):
    judged(*results)
    for extra in ([], ["--json"]):
        assert moe_ref_command(*TARGET, *extra).exit_code == code


def test_table(moe_ref_command, judged):
    judged(HOLDS, FAILS, SKIPS, CANNOT)
    text = moe_ref_command(*TARGET).stdout
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("GRP")}
    assert rows["GRP-01"].split()[1:] == ["Rows", "are", "right.", "pass", "0.1235"]
    assert rows["GRP-02"].split()[-2:] == ["fail", "1.235e+04"]
    assert "cannot tell" in rows["GRP-04"]
    assert "skipped GRP-03: gradients are declared absent" in text
    assert text.splitlines()[-1] == "4 checks: 1 pass, 1 fail, 1 cannot tell, 1 skipped"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (0.25, "0.2500"),
        (1e-9, "1.000e-09"),
        (0.99999, "0.9999"),
        (1.0, "1.000"),
        (1.00001, "1.001"),
        (1234.5, "1234"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_ratio(value, text):
    assert ratio(value) == text


def test_failures_can_be_pasted(moe_ref_command, judged):
    judged(FAILS)
    lines = moe_ref_command(*TARGET).stdout.splitlines()
    assert LONG.strip() in [line.strip() for line in lines]
    assert FAILS.detail in lines
    assert all(len(line) <= 80 for line in lines if line.strip() != LONG.strip())


@pytest.mark.parametrize("columns", ["50", "80", "120"])
def test_table_fits_the_width(moe_ref_command, judged, monkeypatch, columns):
    judged(dataclasses.replace(HOLDS, statement="Rows are right. " * 20), SKIPS)
    monkeypatch.setenv("COLUMNS", columns)
    assert max(map(len, moe_ref_command(*TARGET).stdout.splitlines())) <= int(columns)


@pytest.mark.parametrize("ratio", [None, 0.0, 1.5, math.inf, math.nan])
def test_json(moe_ref_command, judged, ratio):
    def refuse(constant):
        raise AssertionError(constant)

    judged(dataclasses.replace(FAILS, ratio=ratio), SKIPS)
    result = moe_ref_command(*TARGET, "--json")
    document = json.loads(result.stdout, parse_constant=refuse)
    assert document["counts"]["fail"] == 1
    assert document["results"][0]["counterexample"] == LONG
    assert result.stderr == "a kernel that talks\n"


def test_options_arrive(moe_ref_command, judged, tmp_path):
    calls = judged(HOLDS)
    asked = ("--seed", 3, "--budget", "thorough", "--save", tmp_path, "--only", "GRP-04")
    moe_ref_command(*TARGET, *asked)
    options = {"only": ["GRP-04"], "seed": 3, "budget": "thorough", "save": tmp_path}
    assert calls == [("jax.lax:ragged_dot", options)]


@pytest.mark.parametrize("op", [None, "route", "grouped_matmul"])
def test_what_is_shipped(moe_ref_command, judged, op):
    calls = judged(HOLDS)
    assert moe_ref_command("check", *([] if op is None else ["--op", op])).exit_code == 0
    shipped = [i.name for i in conformance.builtin() if op in (None, i.op)]
    assert [name for name, _ in calls] == shipped != []


def test_html(moe_ref_command, judged, tmp_path):
    judged(HOLDS, FAILS)
    page = tmp_path / "report.html"
    assert moe_ref_command(*TARGET, "--html", page).exit_code == 1
    assert "GRP-02" in page.read_text(encoding="utf-8")


def test_checks_are_listed(moe_ref_command):
    found = json.loads(moe_ref_command("checks", "--json").stdout)
    assert [each["id"] for each in found] == [c.id for c in conformance.checks()]
    assert set(found[0]) == {"id", "op", "kind", "statement", "formula"}
    text = moe_ref_command("checks", "--op", "route").stdout
    for check in conformance.checks():
        assert (check.id in text) == (check.op == "route")


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


@pytest.mark.parametrize("op", [[], ["--op", "dance"]])
def test_bad_operation(moe_ref_command, op):
    result = moe_ref_command("check", "jax.lax:ragged_dot", *op)
    assert result.exit_code == 2
    assert "grouped_matmul" in result.stderr


def test_unknown_check(moe_ref_command):
    result = moe_ref_command(*TARGET, "--only", "GRP-99")
    assert result.exit_code == 2
    assert "GRP-99" in result.stderr


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
