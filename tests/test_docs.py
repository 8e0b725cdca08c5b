"""Every public name is documented, and every example in the documentation runs."""

import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path

import jax
import pytest

import moe_ref

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^::: (moe_ref\.\S+)$", re.MULTILINE)
DOCUMENTED = {name for page in PAGES for name in DIRECTIVE.findall(page.read_text())}


def _public():
    """Yield (dotted name, object) for whatever a public subpackage exports; cli is a command."""
    for info in pkgutil.iter_modules(moe_ref.__path__, "moe_ref."):
        if info.ispkg and info.name != "moe_ref.cli":
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                if not name.startswith("_") and not inspect.ismodule(value):
                    yield f"{info.name}.{name}", value


PUBLIC = dict(_public())
DESCRIBED = {n: v for n, v in PUBLIC.items() if inspect.isclass(v) or inspect.isroutine(v)}


def _examples(text):
    return [textwrap.dedent(body) for _, body in FENCE.findall(text)]


def _docstring_examples(value):
    members = [m for n, m in vars(value).items() if n[0] != "_"] if inspect.isclass(value) else []
    return [example for v in [value, *members] for example in _examples(inspect.getdoc(v) or "")]


def _run(blocks, name):
    """Run the blocks one after the other, with the number of bits that a reader has."""
    namespace = {"__name__": "example"}
    with jax.enable_x64(False):
        for i, block in enumerate(blocks):
            exec(compile(block, f"<{name}, example {i + 1}>", "exec"), namespace)


@pytest.mark.parametrize("name", PUBLIC)
def test_is_on_a_page(name):
    assert name in DOCUMENTED


@pytest.mark.parametrize("name", DESCRIBED)
def test_has_a_docstring(name):
    assert (DESCRIBED[name].__doc__ or "").strip()


def test_pages_name_only_what_is_public():
    assert set(PUBLIC) >= DOCUMENTED


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if _examples(page.read_text())],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_page_examples_run(page, tmp_path, monkeypatch):
    blocks = _examples(page.read_text())
    monkeypatch.chdir(tmp_path)
    _run(blocks, page.name)


@pytest.mark.parametrize(
    "name", [name for name, value in DESCRIBED.items() if _docstring_examples(value)]
)
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _run(_docstring_examples(DESCRIBED[name]), name)
