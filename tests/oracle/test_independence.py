"""The oracle shares no code with what it judges."""

import ast
import sys
from pathlib import Path

import pytest

import moe_ref.oracle

FILES = sorted(Path(moe_ref.oracle.__file__).parent.glob("*.py"))
OWN = ("moe_ref.oracle", "moe_ref.spec", "moe_ref._errors")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_imports_numpy_the_standard_library_and_the_spec(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names = [node.module]
        else:
            continue
        for name in names:
            top = name.split(".")[0]
            standard = top in sys.stdlib_module_names and name != "importlib"
            own = any(name == o or name.startswith(o + ".") for o in OWN)
            assert top == "numpy" or standard or own, name
