"""Every layout ends up in the same arrays, in the dtype asked for, and only one layer is read."""

import json
import shutil

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.golden import FOLDER, GOLDENS, Golden
from models.releases import RELEASES
from models.tiny import MIXTRAL, PREFIX, E, F, mixtral, numbers, write, write_index
from moe_ref.layers import MoE
from moe_ref.models import load_layer, read_layer

# Square experts: 4 wide inside and out, where no shape tells a weight from its transpose.
SIDE, EXPERTS = 4, 3
SQUARE = {"hidden_size": SIDE, "num_hidden_layers": 4, "num_experts_per_tok": 1}


def each(template: str, weights: np.ndarray) -> dict[str, np.ndarray]:
    return {template.format(e): np.ascontiguousarray(weights[e]) for e in range(EXPERTS)}


def separate(gate, up, down, block, names):
    templates = [f"{block}experts.{{}}.{name}.weight" for name in names]
    return each(templates[0], gate) | each(templates[1], up) | each(templates[2], down)


def interleaved(gate, up):
    return np.stack([gate, up], axis=2).reshape(EXPERTS, 2 * SIDE, SIDE)


def swap(weights):
    return np.ascontiguousarray(weights.swapaxes(1, 2))


# (release, sizes, block, router, tensors from gate and up [experts, d_hidden, d_model] and down
# [experts, d_model, d_hidden])
LAYOUTS = {
    "separate": (
        "mixtral-8x7b",
        {"intermediate_size": SIDE, "num_local_experts": EXPERTS},
        "model.layers.3.block_sparse_moe.",
        "gate.weight",
        lambda g, u, d, b: separate(g, u, d, b, ("w1", "w3", "w2")),
    ),
    "fused": (
        "mixtral-8x7b",
        {"intermediate_size": SIDE, "num_local_experts": EXPERTS},
        "model.layers.3.mlp.",
        "gate.weight",
        lambda g, u, d, b: {
            b + "experts.gate_up_proj": np.concatenate([g, u], axis=1),
            b + "experts.down_proj": d,
        },
    ),
    "linear": (
        "granitemoe",
        {"intermediate_size": SIDE, "num_local_experts": EXPERTS},
        "model.layers.3.block_sparse_moe.",
        "router.layer.weight",
        lambda g, u, d, b: {
            b + "input_linear.weight": np.concatenate([g, u], axis=1),
            b + "output_linear.weight": d,
        },
    ),
    "stacked": (
        "dbrx",
        {
            "d_model": SIDE,
            "ffn_config": {"ffn_hidden_size": SIDE, "moe_num_experts": EXPERTS, "moe_top_k": 1},
        },
        "transformer.blocks.3.ffn.",
        "router.layer.weight",
        lambda g, u, d, b: {
            b + "experts.mlp.w1": g.reshape(-1, SIDE),
            b + "experts.mlp.v1": u.reshape(-1, SIDE),
            b + "experts.mlp.w2": swap(d).reshape(-1, SIDE),
        },
    ),
    "transposed": (
        "llama4-scout",
        {"intermediate_size": SIDE, "num_local_experts": EXPERTS},
        "language_model.model.layers.3.feed_forward.",
        "router.weight",
        lambda g, u, d, b: {
            b + "experts.gate_up_proj": swap(np.concatenate([g, u], axis=1)),
            b + "experts.down_proj": swap(d),
            b + "shared_expert.gate_proj.weight": g[0],
            b + "shared_expert.up_proj.weight": u[0],
            b + "shared_expert.down_proj.weight": d[0],
        },
    ),
    "interleaved": (
        "gpt-oss-20b",
        {"intermediate_size": SIDE, "num_local_experts": EXPERTS},
        "model.layers.3.mlp.",
        "router.weight",
        lambda g, u, d, b: {
            b + "experts.gate_up_proj": swap(interleaved(g, u)),
            b + "experts.down_proj": swap(d),
            b + "experts.gate_up_proj_bias": interleaved(g, u)[:, :, 0].copy(),
            b + "experts.down_proj_bias": d[:, :, 0].copy(),
            b + "router.bias": numbers(EXPERTS),
        },
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_square_experts_are_never_transposed(tmp_path, layout):
    name, sizes, block, router, tensors = LAYOUTS[layout]
    gate, up, down = (numbers(EXPERTS, SIDE, SIDE, start=s) for s in (0, 100, 200))
    stored = tensors(gate, up, down, block) | {block + router: numbers(EXPERTS, SIDE)}
    write(tmp_path, RELEASES[name] | SQUARE | sizes, stored)
    spec, arrays = read_layer(tmp_path, layer=3)
    experts = arrays["experts"]
    assert np.array_equal(experts["w_in"], np.concatenate([swap(gate), swap(up)], axis=2))
    assert np.array_equal(experts["w_out"], swap(down))
    assert np.array_equal(arrays["router"]["weight"], numbers(EXPERTS, SIDE))
    if spec.experts.expert_bias:
        assert np.array_equal(experts["b_in"], np.concatenate([gate, up], axis=1)[:, :, 0])
        assert np.array_equal(experts["b_out"], down[:, :, 0])
    if spec.shared_d_hidden:
        assert np.array_equal(
            arrays["shared"]["w_in"], np.concatenate([gate[0].T, up[0].T], axis=1)
        )
        assert np.array_equal(arrays["shared"]["w_out"], down[0].T)


def leaves(arrays: dict, prefix: str = "") -> dict[str, np.ndarray]:
    found = {}
    for name, value in arrays.items():
        if isinstance(value, dict):
            found |= leaves(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value
    return found


def same(one: dict, other: dict) -> bool:
    one, other = leaves(one), leaves(other)
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and np.array_equal(one[k], other[k]) for k in one
    )


# Names in checkpoints -> names of the modules of transformers 5, which fuse the experts.
RENAMES = {
    "mixtral": {".block_sparse_moe.": ".mlp."},
    "minimax_m2": {".block_sparse_moe.": ".mlp."},
    "qwen3_moe": {},
    "jamba": {},
    "deepseek_v3": {},
    "deepseek_v4": {
        ".ffn.": ".mlp.",
        ".gate.bias": ".gate.e_score_correction_bias",
        ".shared_experts.w1.": ".shared_experts.gate_proj.",
        ".shared_experts.w2.": ".shared_experts.down_proj.",
        ".shared_experts.w3.": ".shared_experts.up_proj.",
    },
    "ernie4_5_moe": {".mlp.moe_statics.": ".mlp.gate.moe_statics."},
    "laguna": {".experts.e_score": ".gate.e_score", ".shared_expert.": ".shared_experts."},
}


@pytest.mark.parametrize("name", RENAMES)
def test_fused_modules_give_the_same_arrays(tmp_path, name):
    golden = next(g for g in GOLDENS if g.name == name)
    spec, arrays = read_layer(golden.folder, layer=golden.layer)
    fused, experts = {}, {}
    for full, tensor in load_file(golden.folder / "model.safetensors").items():
        for old, new in RENAMES[name].items():
            full = full.replace(old, new)
        head, _, tail = full.partition(".experts.")
        if tail[:1].isdigit():
            number, part, _ = tail.split(".")
            experts[head, int(number), part] = tensor
        else:
            fused[full] = tensor
    for head in {head for head, _, _ in experts}:
        parts = {part for _, _, part in experts}
        gate, up, down = (
            ("w1", "w3", "w2") if "w1" in parts else ("gate_proj", "up_proj", "down_proj")
        )
        everyone = range(spec.router.num_experts)
        rows = [np.concatenate([experts[head, e, gate], experts[head, e, up]]) for e in everyone]
        fused[head + ".experts.gate_up_proj"] = np.stack(rows)
        fused[head + ".experts.down_proj"] = np.stack([experts[head, e, down] for e in everyone])
    shutil.copy(golden.folder / "config.json", tmp_path)
    save_file(fused, tmp_path / "model.safetensors")
    assert same(read_layer(tmp_path, layer=golden.layer)[1], arrays)


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_shards_give_the_same_arrays_and_others_may_be_absent(tmp_path, golden: Golden):
    tensors = load_file(golden.folder / "model.safetensors")
    config = json.loads((golden.folder / "config.json").read_text())
    mine = [n for n in tensors if f".{golden.prefix.rpartition('layer')[2]}." in n]
    halves = [mine[::2], mine[1::2], [name for name in tensors if name not in mine]]
    write(tmp_path, config, *({name: tensors[name] for name in half} for half in halves))
    # What is not needed is not even opened.
    (tmp_path / "model-2.safetensors").write_bytes(b"no safetensors file")
    whole = read_layer(golden.folder, layer=golden.layer)
    assert same(read_layer(tmp_path, layer=golden.layer)[1], whole[1])
    (tmp_path / "model-2.safetensors").unlink()
    assert read_layer(tmp_path, layer=golden.layer)[0] == whole[0]


def test_a_single_file_comes_before_an_index(tmp_path):
    write(tmp_path, MIXTRAL, mixtral())
    write_index(tmp_path, dict.fromkeys(mixtral(), "absent.safetensors"))
    read_layer(tmp_path, layer=0)


@pytest.mark.parametrize("root", ["", "model.", "model.language_model.", "language_model.model."])
def test_roots(tmp_path, root):
    tensors = {name.replace("model.", root, 1): t for name, t in mixtral().items()}
    vision = {"vision_tower.layers.0.block_sparse_moe.gate.weight": numbers(1)}
    write(tmp_path, {"model_type": "any", "text_config": MIXTRAL}, tensors | vision)
    _, arrays = read_layer(tmp_path, layer=0)
    assert np.array_equal(arrays["router"]["weight"], mixtral()[PREFIX + "gate.weight"])


def dtypes(arrays: dict) -> set[str]:
    return {array.dtype.name for array in leaves(arrays).values()}


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_stored_dtype_is_kept(tmp_path, stored):
    _, arrays = read_layer(write(tmp_path, MIXTRAL, mixtral(stored)), layer=0)
    assert dtypes(arrays) == {np.dtype(stored).name}
    assert np.array_equal(arrays["experts"]["w_out"][1], numbers(4, F, start=120).T)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_a_dtype_converts_everything(tmp_path, name):
    folder = write(tmp_path, MIXTRAL, mixtral())
    for dtype in (name, jnp.dtype(name), getattr(jnp, name)):
        assert dtypes(read_layer(folder, layer=0, dtype=dtype)[1]) == {name}


def test_conversion_rounds_to_nearest_even(tmp_path):
    gate = np.array([[1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -0.0]] * E, np.float32)
    write(tmp_path, MIXTRAL, mixtral() | {PREFIX + "gate.weight": gate})
    weight = read_layer(tmp_path, layer=0, dtype="bfloat16")[1]["router"]["weight"]
    assert weight[0].astype(np.float64).tolist() == [1, 1 + 2.0**-6, 1 + 2.0**-7, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mixtral", {"weight": "bfloat16"}),
        ("deepseek_v3", {"weight": "float32", "selection_bias": "float32"}),
        ("ernie4_5_moe", {"weight": "float32", "selection_bias": "float32"}),
        ("deepseek_v4", {"weight": "bfloat16", "table": "int32"}),
        ("lfm2_moe", {"weight": "bfloat16", "selection_bias": "float32"}),
        ("gpt_oss", {"weight": "bfloat16", "bias": "bfloat16"}),
    ],
)
def test_router_dtypes_are_lower_bounds(name, expected):
    golden = next(g for g in GOLDENS if g.name == name)
    arrays = read_layer(golden.folder, layer=golden.layer, dtype="bfloat16")[1]
    assert {k: v.dtype.name for k, v in leaves(arrays.pop("router")).items()} == expected
    assert dtypes(arrays) == {"bfloat16"}
    wide = read_layer(golden.folder, layer=golden.layer, dtype="float64")[1]
    assert dtypes(wide) <= {"float64", "int32"}


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_load_layer_holds_what_read_layer_read(golden: Golden):
    spec, arrays = read_layer(golden.folder, layer=golden.layer)
    assert all(type(array) is np.ndarray for array in leaves(arrays).values())
    layer = load_layer(str(golden.folder), layer=golden.layer)
    assert isinstance(layer, MoE)
    assert layer.spec == spec
    for name, array in leaves(arrays).items():
        ours = layer
        for part in name.split("."):
            ours = getattr(ours, part)
        assert ours.dtype == array.dtype
        assert np.array_equal(ours, array)


def test_every_golden_folder_is_used():
    assert {g.name for g in GOLDENS} == {path.name for path in FOLDER.iterdir() if path.is_dir()}
