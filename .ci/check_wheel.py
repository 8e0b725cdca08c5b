"""Use the installed wheel from an empty folder; run by `make wheel` with the wheel's own Python."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HEAVY = {"hypothesis", "pytest", "chex", "torch", "matplotlib"}

os.chdir(tempfile.mkdtemp())
import moe_ref  # noqa: E402

place = Path(moe_ref.__file__).resolve()
assert Path(sys.prefix).resolve() in place.parents, f"moe_ref was imported from {place}"
assert not HEAVY & set(sys.modules), f"import moe_ref imported {HEAVY & set(sys.modules)}"
assert (place.parent / "py.typed").is_file(), "the wheel lacks py.typed"
command = Path(sys.executable).parent / "moe-ref"
subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
print(f"wheel: moe_ref {moe_ref.__version__} imports and `moe-ref --help` runs")
