import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from cli.checkpoint import D_HIDDEN, D_MODEL, EXPERTS, K, write_checkpoint
from moe_ref.models import load_layer
from moe_ref.routing import expert_load


def _json(result):
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_json_is_one_document(moe_ref_command, checkpoint):
    found = _json(moe_ref_command("inspect", checkpoint, "--layer", 1, "--tokens", 100, "--json"))
    assert found["spec"]["router"]["num_experts"] == EXPERTS
    assert sum(found["load"]) == found["utilisation"]["slots"] == 100 * K
    assert found["tokens"] == 100
    assert found["dtype"] == "float32"


@pytest.mark.parametrize(("tokens", "said"), [(1, "load of 1 token ("), (2, "load of 2 tokens (")])
def test_one_token_is_no_tokens(moe_ref_command, checkpoint, tokens, said):
    result = moe_ref_command("inspect", checkpoint, "--layer", 1, "--tokens", tokens)
    assert f"\n{said}" in result.stdout


def test_parameters_are_those_of_the_layer(moe_ref_command, checkpoint):
    found = _json(moe_ref_command("inspect", checkpoint, "--layer", 1, "--json"))["parameters"]
    one = 3 * D_MODEL * D_HIDDEN
    assert found["router"] == {"total": EXPERTS * D_MODEL, "active": EXPERTS * D_MODEL}
    assert found["routed experts"] == {"total": EXPERTS * one, "active": K * one}
    assert found["total"]["total"] == EXPERTS * (one + D_MODEL)


def test_load_is_that_of_the_layer(moe_ref_command, checkpoint, tmp_path):
    x = np.random.default_rng(1).standard_normal((3, 50, D_MODEL)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    found = _json(
        moe_ref_command(
            "inspect", checkpoint, "--layer", 1, "--input", tmp_path / "x.npy", "--json"
        )
    )
    _, aux = load_layer(checkpoint, layer=1)(jnp.asarray(x.reshape(-1, D_MODEL)))
    assert found["load"] == aux.load.tolist()
    assert found["tokens"] == 150
    assert found["load"] == expert_load(aux.routing.experts, num_experts=EXPERTS).tolist()


def test_chunks_change_nothing(moe_ref_command, checkpoint, monkeypatch):
    arguments = ("inspect", checkpoint, "--layer", 1, "--tokens", 150, "--json")
    whole = _json(moe_ref_command(*arguments))
    for module in ("_hidden", "_load"):
        monkeypatch.setattr(f"moe_ref.cli.{module}.CHUNK", 64)
    assert _json(moe_ref_command(*arguments))["load"] == whole["load"]


def test_seed_matters(moe_ref_command, checkpoint):
    arguments = ("inspect", checkpoint, "--layer", 1, "--json")
    first, second = (_json(moe_ref_command(*arguments, "--seed", s))["load"] for s in (0, 1))
    assert first != second
    assert first == _json(moe_ref_command(*arguments))["load"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_dtype(moe_ref_command, checkpoint, dtype):
    found = _json(moe_ref_command("inspect", checkpoint, "--layer", 1, "--dtype", dtype, "--json"))
    assert found["dtype"] == dtype


def test_idle_experts_and_ratio(moe_ref_command, tmp_path):
    # Experts 0 and 1 win for every token whose sum is positive, 2 and 3 for the others.
    router = np.zeros((EXPERTS, D_MODEL))
    router[:2], router[2:4] = 1, -1
    folder = write_checkpoint(tmp_path / "skewed", router=router)
    np.save(tmp_path / "x.npy", np.full((10, D_MODEL), 2.0))
    arguments = ("inspect", folder, "--layer", 1, "--input", tmp_path / "x.npy")
    found = _json(moe_ref_command(*arguments, "--json"))
    assert found["load"] == [10, 10, 0, 0, 0, 0, 0, 0]
    statistics = found["utilisation"]
    assert (statistics["max"], statistics["min"], statistics["idle"]) == (10, 0, 6)
    assert statistics["max_over_mean"] == EXPERTS / 2
    assert statistics["dropped"] == 0
    assert "idle experts" in moe_ref_command(*arguments).stdout


@pytest.mark.parametrize("columns", ["60", "80", "120"])
@pytest.mark.parametrize("experts", [8, 100])
def test_text_fits_the_width(moe_ref_command, tmp_path, monkeypatch, columns, experts):
    folder = write_checkpoint(tmp_path / "tiny", experts=experts)
    monkeypatch.setenv("COLUMNS", columns)
    result = moe_ref_command("inspect", folder, "--layer", 1)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= int(columns)
    for word in ("tiny, layer 1", "num_experts=", "routed experts", "dropped", "█"):
        assert word in result.stdout


def test_plot(moe_ref_command, checkpoint, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("load.png", "no_suffix"):
        path = tmp_path / name
        assert moe_ref_command("inspect", checkpoint, "--layer", 1, "--plot", path).exit_code == 0
        assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(moe_ref_command, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = moe_ref_command("inspect", checkpoint, "--layer", 1, "--plot", tmp_path / "load.png")
    assert result.exit_code == 2
    assert "moe_ref[plot]" in result.stderr
    assert len(result.stderr.splitlines()) == 1
