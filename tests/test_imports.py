"""`import moe_ref` is cheap and leaves the process as it found it."""

import json
import pkgutil
import subprocess
import sys

import pytest

import moe_ref

HEAVY = {"hypothesis", "pytest", "chex", "torch", "matplotlib"}

AFTER_IMPORT = """
import json, sys
import jax
def config():
    return {name: repr(value) for name, value in jax.config.values.items()}
before = config()
import moe_ref
after = config()
from jax._src import xla_bridge
print(json.dumps({
    "modules": sorted(sys.modules),
    "changed": [name for name in after if after[name] != before.get(name)],
    "initialized": xla_bridge.backends_are_initialized(),
    "attributes": dir(moe_ref),
}))
"""


@pytest.fixture(scope="module")
def after_import():
    done = subprocess.run(
        [sys.executable, "-c", AFTER_IMPORT], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_imports_no_test_tool_torch_or_plots(after_import):
    assert not HEAVY & set(after_import["modules"])


def test_sets_no_jax_config(after_import):
    assert after_import["changed"] == []


def test_initializes_no_backend(after_import):
    # No backend means no device array, and lets the user still choose a platform.
    assert not after_import["initialized"]


def test_subpackages_are_attributes(after_import):
    public = {info.name for info in pkgutil.iter_modules(moe_ref.__path__) if info.ispkg} - {"cli"}
    assert public <= set(after_import["attributes"])
