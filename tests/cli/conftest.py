"""A small checkpoint, verdicts made up, and a way to call `moe-ref`."""

import dataclasses

import pytest
from typer.testing import CliRunner

from cli.checkpoint import write_checkpoint
from moe_ref import conformance
from moe_ref.cli._main import app
from moe_ref.conformance import Report


@pytest.fixture
def moe_ref_command(monkeypatch):
    """Call `moe-ref` with arguments, in this process, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("MOE_REF_DEBUG", raising=False)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "tiny")


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
