"""`moe-ref mutants` with a matrix made up here."""

import json

import pytest

from cli.verdicts import CANNOT, FAILS
from moe_ref.conformance import Implementation, mutants
from moe_ref.conformance.mutants import Matrix, Mutant
from moe_ref.conformance.suite import checks

ROUTE = [check.id for check in checks("route")]


def _mutant(name, *killers, op="route"):
    implementation = Implementation(name=name, op=op, function=print)
    return Mutant(implementation=implementation, fault=f"{name} is wrong.", killers=killers)


DEAD, ALIVE = _mutant("dead", "RTE-01", "RTE-03"), _mutant("alive", "RTE-02")
OTHER = _mutant("other", "GRP-02", op="grouped_matmul")


@pytest.fixture
def judged(monkeypatch):
    """Let every check of its operation but those of `spared` notice a mutant."""
    asked = []

    def install(*rows, spared=()):
        def matrix(found, *, seed, quick, progress):
            asked.append(([mutant.name for mutant in found], seed))
            status = {}
            for mutant in found:
                progress(mutant.name)
                for check in checks(mutant.implementation.op):
                    held = (mutant.name, check.id) in spared or check.id in spared
                    status[mutant.name, check.id] = "pass" if held else "fail"
            return Matrix(mutants=tuple(found), status=status)

        monkeypatch.setattr(mutants, "MUTANTS", rows)
        monkeypatch.setattr(mutants, "matrix", matrix)
        return asked

    return install


def test_all_are_killed(moe_ref_command, judged):
    asked = judged(DEAD, OTHER)
    result = moe_ref_command("mutants", "--seed", 7)
    assert result.exit_code == 0
    assert asked == [(["dead", "other"], 7)]
    last = "0 survived; 0 missed by a check made for them; 0 checks noticed nothing"
    assert " ".join(result.stdout.split()).endswith(f"2 mutants: 2 killed, {last}")
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("dead")]
    first = " ".join(i.removeprefix("RTE-") for i in ROUTE[:3])
    assert f"{len(ROUTE)}: RTE-{first}" in row


def test_one_is_no_plural(moe_ref_command, judged):
    judged(DEAD, spared={"RTE-04"})
    said = " ".join(moe_ref_command("mutants").stdout.split())
    assert "1 mutant: 1 killed, 0 survived; " in said
    assert said.endswith("1 check noticed nothing")


def test_what_is_wrong_is_listed(moe_ref_command, judged):
    judged(DEAD, ALIVE, spared={"RTE-04", ("dead", "RTE-03"), *(("alive", i) for i in ROUTE)})
    result = moe_ref_command("mutants")
    assert result.exit_code == 1
    text = result.stdout
    assert "survive\n  alive\n" in text
    assert " ".join(text.split()).endswith("2 checks noticed nothing")
    assert "missed\n  dead by RTE-03\n  alive by RTE-02\n" in text
    assert "notice nothing\n  RTE-03\n  RTE-04\n" in text


def test_json(moe_ref_command, judged):
    judged(DEAD, ALIVE, spared={("dead", "RTE-03")})
    result = moe_ref_command("mutants", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["ok"] is False
    assert found["missed"] == [{"mutant": "dead", "check": "RTE-03"}]
    assert (found["survivors"], found["idle"]) == ([], [])
    assert found["mutants"][0]["killers"] == ["RTE-01", "RTE-03"]
    assert found["mutants"][0]["killed_by"] == [i for i in ROUTE if i != "RTE-03"]


def test_of_an_operation(moe_ref_command, judged):
    asked = judged(DEAD, OTHER)
    assert moe_ref_command("mutants", "--op", "grouped_matmul").exit_code == 0
    assert asked == [(["other"], 0)]
    refused = moe_ref_command("mutants", "--op", "layer")
    assert refused.exit_code == 2
    assert "grouped_matmul, route; got 'layer'" in refused.stderr


@pytest.mark.parametrize(
    ("alarms", "code"), [([], 0), ([(5, FAILS)], 1), ([(5, FAILS), (6, CANNOT)], 1)]
)
def test_right_implementations(moe_ref_command, monkeypatch, alarms, code):
    asked = []

    def false_alarms(found, *, seeds, progress):
        asked.append(([each.name for each in found], list(seeds)))
        return alarms

    monkeypatch.setattr(mutants, "CORRECT", (DEAD.implementation, OTHER.implementation))
    monkeypatch.setattr(mutants, "false_alarms", false_alarms)
    options = ("mutants", "--correct", "--seed", 5, "--seeds", 2)
    result = moe_ref_command(*options)
    assert (result.exit_code, asked) == (code, [(["dead", "other"], [5, 6])])
    alarmed = "1 false alarm" if len(alarms) == 1 else f"{len(alarms)} false alarms"
    said = f"2 right implementations, 2 seeds: {alarmed}"
    assert result.stdout.splitlines()[-1] == said
    for seed, alarm in alarms:
        assert f"seed {seed}\n" in result.stdout
        assert alarm.detail in result.stdout
    document = json.loads(moe_ref_command(*options, "--json").stdout)
    assert document["ok"] == (code == 0)
    assert [(a["seed"], a["id"]) for a in document["false_alarms"]] == [
        (s, r.id) for s, r in alarms
    ]


def test_seeds_are_of_right_ones(moe_ref_command):
    result = moe_ref_command("mutants", "--seeds", 2)
    assert result.exit_code == 2
    assert "--correct" in result.stderr
