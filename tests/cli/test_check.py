"""`moe-ref check` with verdicts made up here; what is judged for real is in test_process.py."""

import dataclasses
import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.verdicts import CANNOT, FAILS, HOLDS, LONG, SKIPS, TARGET, save_input
from moe_ref import conformance
from moe_ref.cli._results import ratio
from moe_ref.conformance import Report
from moe_ref.conformance.mutants import MUTANTS


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


@pytest.mark.parametrize(
    ("results", "said"),
    [([HOLDS], "1 check: 1 pass"), ([HOLDS, SKIPS], "2 checks: 1 pass, 1 skipped")],
)
def test_one_check_is_no_checks(moe_ref_command, judged, results, said):
    judged(*results)
    assert moe_ref_command(*TARGET).stdout.splitlines()[-1] == said


@pytest.mark.parametrize("shrunk", [True, False])
def test_an_input_that_nothing_made_smaller_is_no_smallest_one(moe_ref_command, judged, shrunk):
    judged(dataclasses.replace(FAILS, shrunk=shrunk))
    lines = moe_ref_command(*TARGET).stdout.splitlines()
    assert ("smallest input found:" in lines) == shrunk
    assert ("the input itself:" in lines) != shrunk


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
    asked += ("--time-limit", 2.5, "--memory-limit", 0.5, "--resume", tmp_path / "results")
    moe_ref_command(*TARGET, *asked)
    options = {"only": ["GRP-04"], "seed": 3, "budget": "thorough", "save": tmp_path}
    options |= {"time_limit": 2.5, "memory_limit": 2**29, "resume": tmp_path / "results"}
    assert calls == [("jax.lax:ragged_dot", options)]


def test_numerics_of_tensor_cores_arrive(moe_ref_command, monkeypatch):
    found = []

    def judge(implementations, *arguments, **options):
        found.extend(implementations)
        return []

    monkeypatch.setattr("moe_ref.cli._check.judge_all", judge)
    monkeypatch.setattr("moe_ref.cli._check.give", lambda *arguments, **options: None)
    assert moe_ref_command(*TARGET, "--numerics", "tensor-cores").exit_code == 0
    assert {d: n.accumulate_rounding for d, n in found[0].numerics.items()} == {
        "float32": "toward_zero",
        "bfloat16": "toward_zero",
    }
    assert found[0].numerics["float32"].multiply == "tf32"


@pytest.mark.parametrize("arrays", ["jax", "numpy", "torch"])
def test_arrays_arrive(moe_ref_command, monkeypatch, arrays):
    found = []

    def run(implementation, **_):
        found.append(implementation.arrays)
        return Report((HOLDS,))

    monkeypatch.setattr(conformance, "run", run)
    assert moe_ref_command(*TARGET, "--arrays", arrays).exit_code == 0
    assert found == [arrays]


@pytest.mark.parametrize("op", [None, "route", "grouped_matmul"])
def test_what_is_shipped(moe_ref_command, judged, op):
    calls = judged(HOLDS)
    assert moe_ref_command("check", *([] if op is None else ["--op", op])).exit_code == 0
    shipped = [i.name for i in conformance.builtin() if op in (None, i.op)]
    assert sorted(name for name, _ in calls) == sorted(shipped) != []


XFAILS = {
    "GRP-02 tiles\n": (0, "1 xfail"),
    "GRP-02 tiles\nGRP-03 none\n": (0, "1 xfail"),
    "GRP-01 tiles\nGRP-02 tiles\n": (1, "1 fail"),
    "RTE-01 of another operation": (1, "1 fail"),
}


@pytest.mark.parametrize("text", XFAILS)
def test_known_failures(moe_ref_command, judged, tmp_path, text):
    judged(HOLDS, FAILS, SKIPS)
    (tmp_path / "xfails.txt").write_text(text)
    code, said = XFAILS[text]
    result = moe_ref_command(*TARGET, "--xfails", tmp_path / "xfails.txt")
    assert result.exit_code == code
    assert said in result.stdout.splitlines()[-1]
    if code == 0:
        assert "xfail GRP-02: expected: tiles; row 3" in result.stdout


def test_junit(moe_ref_command, judged, tmp_path):
    judged(HOLDS, FAILS)
    file = tmp_path / "report.xml"
    assert moe_ref_command(*TARGET, "--junit", file, "--json").exit_code == 1
    root = ElementTree.parse(file).getroot()
    assert [case.attrib["name"] for case in root.iter("testcase")] == ["GRP-01", "GRP-02"]


def test_replay(moe_ref_command, monkeypatch, tmp_path):
    found = []

    def replay(implementation, path, **limits):
        found.append((implementation.name, path, limits))
        return FAILS

    monkeypatch.setattr(conformance, "replay", replay)
    path = Path(save_input(tmp_path))
    limits = {"time_limit": 120.0, "memory_limit": 2**34}
    assert moe_ref_command("check", "jax.lax:ragged_dot", "--replay", path).exit_code == 1
    assert found == [("jax.lax:ragged_dot", path, limits)]
    moe_ref_command("check", "--replay", path)
    shipped = [i.name for i in conformance.builtin() if i.op == "grouped_matmul"]
    assert [name for name, _, _ in found[1:]] == shipped != []


def test_html(moe_ref_command, judged, tmp_path):
    judged(HOLDS, FAILS)
    page = tmp_path / "report.html"
    assert moe_ref_command(*TARGET, "--html", page).exit_code == 1
    assert "GRP-02" in page.read_text(encoding="utf-8")


def test_checks_are_listed(moe_ref_command):
    found = json.loads(moe_ref_command("checks", "--json").stdout)
    assert [each["id"] for each in found] == [c.id for c in conformance.checks()]
    assert set(found[0]) == {"id", "op", "kind", "statement", "formula", "mutants"}
    for mutant in MUTANTS:
        meant = {each["id"] for each in found if mutant.name in each["mutants"]}
        assert meant == set(mutant.killers)
    text = moe_ref_command("checks", "--op", "route").stdout
    for check in conformance.checks():
        assert (check.id in text) == (check.op == "route")
    (row,) = [line for line in text.splitlines() if line.startswith("RTE-02")]
    assert row.split()[1:3] == ["route", "exact"]
