"""What is declared in pyproject.toml, and what the house rules forbid."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
PINS = [
    line
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILES = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]


def _name(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("-", "_")


def _imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def _tolerances(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            yield from {node.attr} & {"allclose", "assert_allclose", "isclose", "approx"}
        elif isinstance(node, ast.keyword):
            yield from {node.arg} & {"atol", "rtol", "rel_tol", "abs_tol"}


def _offenders(test):
    return [str(file.relative_to(ROOT)) for file in FILES if test(file)]


def test_version_has_one_source():
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "src/moe_ref/__init__.py"


def test_declares_what_it_imports():
    optional = [*EXTRAS["plot"], *EXTRAS["test"]]
    declared = {_name(requirement) for requirement in [*DEPENDENCIES, *optional]}
    imported = {name.lower() for file in SOURCES for name in _imported(file)}
    assert imported - {"moe_ref", "_moe_ref_pytest"} - sys.stdlib_module_names <= declared


def test_the_wheel_holds_the_plugin():
    held = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    (plugin,) = PYPROJECT["project"]["entry-points"]["pytest11"].values()
    assert held == ["src/moe_ref", f"src/{plugin}.py"]
    assert all((ROOT / path).exists() for path in held)


def test_pins_every_direct_dependency():
    direct = [*DEPENDENCIES, *(requirement for extra in EXTRAS.values() for requirement in extra)]
    assert {_name(requirement) for requirement in direct} <= {_name(pin) for pin in PINS}


def test_pins_are_names_and_versions():
    form = re.compile(r"[\w.-]+==[\w.]+( ; python_version (<|>=) \"3\.12\")?")
    assert [pin for pin in PINS if not form.fullmatch(pin)] == []


def test_a_file_is_one_concept():
    assert _offenders(lambda file: len(file.read_text().splitlines()) > 300) == []


def test_annotations_are_evaluated():
    # Shapes in signatures are checked at run time; as strings they would not be.
    assert _offenders(lambda file: "__future__" in set(_imported(file))) == []


def test_no_tolerance_is_picked_by_hand():
    assert _offenders(lambda file: list(_tolerances(file))) == []
