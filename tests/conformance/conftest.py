"""Golden vectors, and right results for them."""

import json

import pytest
from safetensors.numpy import load_file, save_file

from conformance.golden import FEW, grouped, write


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return write(tmp_path_factory.mktemp("vectors") / "new", FEW, monkeypatch)


@pytest.fixture(scope="module")
def manifest(vectors):
    return json.loads((vectors / "manifest.json").read_text())


@pytest.fixture
def answers(vectors, manifest, tmp_path):
    """A folder of right results."""
    folder = tmp_path / "answers"
    folder.mkdir()
    for case in manifest["cases"]:
        tensors, vjp = load_file(vectors / case["file"]), case["method"] == "vjp"
        found = grouped(tensors, "", vjp)
        for name in case["related"]:
            found |= grouped(tensors, f"{name}.", vjp)
        assert {k: list(v.shape) for k, v in found.items()} == {
            k: v["shape"] for k, v in case["results"].items()
        }
        save_file(found, folder / case["file"])
    return folder
