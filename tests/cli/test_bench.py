"""`moe-ref bench` finds the benchmarks, or says where it must be run."""

import subprocess

from benchmarks.__main__ import GPU, NAMES

from moe_ref.cli import _bench
from moe_ref.cli._guard import FAILED


def test_outside_a_checkout_it_is_wrong_use(moe_ref_command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = moe_ref_command("bench")
    assert result.exit_code == 2
    assert "must be run in a checkout of moe_ref" in result.stderr
    assert str(tmp_path) in result.stderr


def test_an_unknown_name_is_wrong_use(moe_ref_command):
    result = moe_ref_command("bench", "groped")
    assert result.exit_code == 2
    assert "`NAME` must be one of grouped, layer" in result.stderr


def test_it_knows_all_of_them():
    assert (*NAMES, GPU) == _bench.NAMES


def test_in_a_checkout_it_runs_the_benchmarks_in_huge_pages(moe_ref_command, monkeypatch, tmp_path):
    calls = []

    def run(command, *, env, check):
        calls.append((command[1:], env["GLIBC_TUNABLES"], check))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    file = tmp_path / "out.json"
    result = moe_ref_command("bench", "grouped", "--json", file)
    command = ["-m", "benchmarks", "grouped", "--json", str(file)]
    assert calls == [(command, "glibc.malloc.hugetlb=1", False)]
    assert result.exit_code == FAILED
