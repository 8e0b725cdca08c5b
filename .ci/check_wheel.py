"""Use the installed wheel from an empty folder; run by `make wheel` with the wheel's own Python."""

import importlib.metadata
import importlib.util
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
assert (place.parent / "conformance" / "report.html.j2").is_file(), "the wheel lacks the report"
plugins = {point.value for point in importlib.metadata.entry_points(group="pytest11")}
assert "_moe_ref_pytest" in plugins, f"pytest would not find the plugin among {plugins}"
assert importlib.util.find_spec("_moe_ref_pytest"), "the wheel lacks the pytest plugin"
command = Path(sys.executable).parent / "moe-ref"
subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
print(f"wheel: moe_ref {moe_ref.__version__} imports and `moe-ref --help` runs")
