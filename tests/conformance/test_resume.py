"""Runs that go on where they stopped, and failures that are tried again."""

import dataclasses
import json

import numpy as np
import pytest

from conformance.broken_kernels import grouped
from moe_ref import conformance
from moe_ref.conformance._journal import Journal
from moe_ref.conformance.mutants import MUTANTS

ONLY = ["GRP-04", "GRP-05", "GRP-13"]


class _Counting:
    """A wrong kernel that counts its calls. A closure keeps it in this process."""

    def __init__(self):
        self.calls = 0

    def implementation(self):
        def kernel(x, w, group_sizes):
            self.calls += 1
            return grouped(x, np.roll(w, 1, axis=0), group_sizes)

        return conformance.Implementation(
            name="mine", op="grouped_matmul", function=kernel, arrays="numpy"
        )

    def run(self, path, **options):
        return conformance.run(
            self.implementation(), only=ONLY, resume=path, shrink_seconds=0, **options
        )


def _ids(path):
    return [json.loads(line)["result"]["id"] for line in path.read_text().splitlines()]


def test_results_are_taken_over(tmp_path):
    path, kernel = tmp_path / "results", _Counting()
    first = kernel.run(path)
    assert [r.status for r in first.results] == ["fail", "pass", "fail"]
    assert _ids(path) == ONLY
    calls = kernel.calls
    assert kernel.run(path) == first
    assert kernel.calls == calls
    # A page can be made of them: what is drawn was kept too.
    assert kernel.run(path).to_html() == first.to_html()


@pytest.mark.parametrize("kept", [1, 7, 8, 0.5, -2])
def test_a_last_line_that_was_cut(tmp_path, kept):
    """Only its check is tried again, and its result is kept this time."""
    path, kernel = tmp_path / "results", _Counting()
    first = kernel.run(path)
    lines = path.read_text().splitlines(keepends=True)
    cut = int(len(lines[-1]) * kept) if kept == 0.5 else kept
    path.write_text("".join(lines[:-1]) + lines[-1][:cut])
    kernel.calls = 0
    found = kernel.run(path)
    again = dataclasses.replace(found.results[-1], seconds=first.results[-1].seconds)
    assert (*found.results[:-1], again) == first.results
    assert kernel.calls == found.results[-1].cases > 0
    kernel.calls = 0
    assert kernel.run(path) == found
    assert kernel.calls == 0


def test_an_only_line_that_was_cut(tmp_path):
    path = tmp_path / "results"
    path.write_text('{"ke')
    assert len(_Counting().run(path).results) == 3


@pytest.mark.parametrize("options", [{"seed": 1}, {"budget": "thorough"}])
def test_results_of_other_inputs_are_not(tmp_path, options):
    path, kernel = tmp_path / "results", _Counting()
    kernel.run(path)
    kernel.calls = 0
    kernel.run(path, **options)
    assert kernel.calls > 0
    assert len(path.read_text().splitlines()) == 6


def test_results_of_another_version_are_not(tmp_path, monkeypatch):
    path, kernel = tmp_path / "results", _Counting()
    kernel.run(path)
    kernel.calls = 0
    monkeypatch.setattr("moe_ref.__version__", "0.0.0")
    kernel.run(path)
    assert kernel.calls > 0


@pytest.mark.parametrize("content", ["notes", "\n", "[]\n", "{}\n"])
def test_files_of_something_else_are_refused(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match="must be a file of results"):
        Journal(path, seed=0)
    assert path.read_text() == content


def test_what_ends_a_run_is_not_kept(tmp_path):
    """Whoever stops a run has stopped its kernel too: what the check says then is no result."""

    class StoppedError(Exception):
        pass

    def stop(done, total, what):
        if done == 2:
            raise StoppedError

    path = tmp_path / "results"
    with pytest.raises(StoppedError):
        _Counting().run(path, progress=stop)
    assert _ids(path) == ["GRP-04"]


# Replay

FIRST = {mutant.implementation.op: mutant for mutant in reversed(MUTANTS)}


@pytest.mark.parametrize("op", FIRST)
def test_a_saved_failure_fails_again(tmp_path, op):
    mutant = FIRST[op]
    (found,) = conformance.run(
        mutant.implementation,
        only=mutant.killers[:1],
        save=tmp_path,
        shrink_seconds=2,
        isolate=False,
    ).results
    again = conformance.replay(mutant.implementation, found.saved, isolate=False)
    assert (again.id, again.status, again.cases) == (found.id, "fail", 1)
    assert again.counterexample == found.counterexample


def test_a_saved_failure_can_pass(tmp_path):
    kernel = _Counting().implementation()
    for result in conformance.run(kernel, only=["GRP-04"], save=tmp_path).results:
        right = dataclasses.replace(kernel, function=lambda *arrays: grouped(*arrays))
        assert conformance.replay(right, result.saved).status == "pass"
        with pytest.raises(ValueError, match="must be a grouped_matmul"):
            conformance.replay(dataclasses.replace(kernel, op="route"), result.saved)
