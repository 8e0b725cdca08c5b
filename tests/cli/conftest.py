"""A small checkpoint, and a way to call `moe-ref`."""

import pytest
from typer.testing import CliRunner

from cli.checkpoint import write_checkpoint
from moe_ref.cli._main import app


@pytest.fixture
def moe_ref_command(monkeypatch):
    """Call `moe-ref` with arguments, in this process, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("MOE_REF_DEBUG", raising=False)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "tiny")
