"""The command line."""

from moe_ref.cli._main import main as main
