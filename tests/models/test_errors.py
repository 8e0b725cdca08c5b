"""What is wrong with a checkpoint is said in one line, and nothing wrong is ever loaded."""

import re
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from models.releases import RELEASES
from models.tiny import MIXTRAL, PREFIX, D, F, changed, mixtral, numbers, refuses, write
from moe_ref.models import CheckpointError, load_layer, read_layer, read_spec, spec_from_config
from moe_ref.models.families import ARCHITECTURES


def test_the_unchanged_checkpoint_is_fine(tmp_path):
    spec, arrays = read_layer(write(tmp_path, MIXTRAL, mixtral()), layer=0)
    assert arrays["experts"]["w_in"].shape == (2, D, 2 * F)
    assert spec.router.k == 1


# Tensors


@pytest.mark.parametrize("name", [name.removeprefix(PREFIX) for name in mixtral()])
def test_missing_tensor(tmp_path, name):
    write(tmp_path, MIXTRAL, changed(name, None))
    refuses(tmp_path, f"`{PREFIX}{name}` must be there, of shape (", "the closest name is `")


def test_the_closest_name_is_close(tmp_path):
    tensors = mixtral()
    tensors[PREFIX + "gate.wieght"] = tensors.pop(PREFIX + "gate.weight")
    message = refuses(write(tmp_path, MIXTRAL, tensors), "gate.weight")
    assert message.endswith(f"the closest name is `{PREFIX}gate.wieght`.")


@pytest.mark.parametrize("name", [name.removeprefix(PREFIX) for name in mixtral()])
def test_transposed_tensor(tmp_path, name):
    right = mixtral()[PREFIX + name]
    write(tmp_path, MIXTRAL, changed(name, np.ascontiguousarray(right.T)))
    expected = f"must be of shape {right.shape}; found {right.T.shape}"
    refuses(tmp_path, "model.safetensors", f"`{PREFIX}{name}`", expected)


@pytest.mark.parametrize("shape", [(), (F * D,), (F, D, 1), (F + 1, D), (0, D)])
def test_wrong_shape(tmp_path, shape):
    write(tmp_path, MIXTRAL, changed("experts.1.w1.weight", np.zeros(shape, np.float32)))
    refuses(tmp_path, "experts.1.w1.weight", f"must be of shape (3, 4); found {shape}")


def test_wrong_dtype(tmp_path):
    write(tmp_path, MIXTRAL, changed("gate.weight", numbers(2, D, dtype=np.int32)))
    refuses(tmp_path, "gate.weight", "must be of dtype F64 or F32 or F16 or BF16; found I32")


def test_experts_of_different_dtypes(tmp_path):
    other = numbers(D, F, dtype=ml_dtypes.bfloat16)
    write(tmp_path, MIXTRAL, changed("experts.1.w2.weight", other))
    refuses(tmp_path, "experts.1.w2.weight", "must be of dtype F32; found BF16")


@pytest.mark.parametrize("name", ["gate.bias", "experts.2.w1.weight", "shared.w1.weight"])
def test_what_nothing_would_read(tmp_path, name):
    write(tmp_path, MIXTRAL, changed(name, np.zeros((F, D), np.float32)))
    refuses(tmp_path, f"`{PREFIX}{name}` must not be there")


def test_more_experts_than_the_config_says(tmp_path):
    write(tmp_path, MIXTRAL | {"num_local_experts": 1}, mixtral())
    refuses(tmp_path, "gate.weight", "must be of shape (1, 4); found (2, 4)")


def test_the_block_is_somewhere_else(tmp_path):
    tensors = {name.replace("layers.0", "layers.1"): t for name, t in mixtral().items()}
    refuses(write(tmp_path, MIXTRAL, tensors), PREFIX, "the closest name is `model.layers.1.")


def test_the_block_is_there_twice(tmp_path):
    twin = {name.replace("block_sparse_moe", "mlp"): t for name, t in mixtral().items()}
    write(tmp_path, MIXTRAL, mixtral() | twin)
    refuses(tmp_path, "in one place", f"found {PREFIX} and model.layers.0.mlp.")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("experts.0.w1.weight_scale_inv", np.float32),
        ("experts.gate_up_proj_blocks", np.uint8),
        ("experts.gate_up_proj_scales", np.uint8),
        ("experts.0.w1.scale", np.float32),
        ("experts.0.w1.qweight", np.int32),
        ("experts.0.w1.weight", np.uint8),
        ("experts.0.w1.weight", np.int8),
    ],
)
def test_quantised(tmp_path, name, dtype):
    write(tmp_path, MIXTRAL, changed(name, numbers(F, D, dtype=dtype)))
    refuses(tmp_path, name, "quantised tensors are not supported")


def test_eight_bit_floats(tmp_path):
    tensors = {name: tensor.view(np.uint8) for name, tensor in mixtral().items()}
    path = write(tmp_path, MIXTRAL, tensors) / "model.safetensors"
    path.write_bytes(re.sub(rb'"U8"', b'"F8_E4M3"', path.read_bytes()))
    size = struct.unpack("<Q", path.read_bytes()[:8])[0] + 5 * len(tensors)
    path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])
    refuses(tmp_path, "quantised tensors are not supported; found F8_E4M3")


def test_hash_table_of_experts_that_do_not_exist(tmp_path):
    config = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 1,
        "hidden_size": D,
        "moe_intermediate_size": F,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "vocab_size": 5,
    }
    tensors = {name.replace("block_sparse_moe", "ffn"): t for name, t in mixtral().items()}
    block = "model.layers.0.ffn."
    for name in ("w1", "w2", "w3"):
        tensors[f"{block}shared_experts.{name}.weight"] = tensors[f"{block}experts.0.{name}.weight"]
    table = np.zeros((5, 1), np.int64)
    read_layer(write(tmp_path, config, tensors | {block + "gate.tid2eid": table}), layer=0)
    for wrong in (-1, 2, 2**40):
        table[3] = wrong
        write(tmp_path, config, tensors | {block + "gate.tid2eid": table})
        refuses(tmp_path, "gate.tid2eid", "must hold ids in [0, 2)", str(wrong))


# Configurations


def misconfigured(config: dict, *parts: str, layer=0):
    with pytest.raises(CheckpointError) as caught:
        spec_from_config(config, layer)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("config.json", *parts):
        assert part in message, message


def test_unknown_model_type_lists_the_known_ones():
    for model_type in ("llama", None, 3):
        misconfigured({"model_type": model_type}, "`model_type`", *ARCHITECTURES, repr(model_type))


@pytest.mark.parametrize("key", [key for key in MIXTRAL if key != "model_type"])
@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "4", True, 10**30])
def test_a_size_that_is_none(key, value):
    misconfigured(
        MIXTRAL | {key: value}, f"`{key}` must be an integer in [1, 16777216]; got {value!r}"
    )


@pytest.mark.parametrize("value", ["tanh", "", 3, ["silu"]])
def test_unknown_activation(value):
    misconfigured(MIXTRAL | {"hidden_act": value}, "`hidden_act`", "silu", repr(value))


def test_more_choices_than_experts():
    config = MIXTRAL | {"num_experts_per_tok": 3}
    misconfigured(config, "`k` must be in [1, num_experts=2]; got 3")


@pytest.mark.parametrize("layer", [-1, 1, 99, True, "0", "decoder.0", "x"])
def test_no_such_layer(layer):
    misconfigured(MIXTRAL, "`layer` must be", repr(layer), layer=layer)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("deepseek_v2", "mlp_bias", True),
        ("deepseek_v2", "topk_method", "random"),
        ("deepseek_v2", "scoring_func", "sigmoid"),
        ("deepseek_v2", "moe_layer_freq", 2),
        ("deepseek_v3", "scoring_func", "softmax"),
        ("deepseek_v3", "topk_method", "greedy"),
        ("deepseek_v3", "norm_topk_prob", 1),
        ("deepseek_v3", "routed_scaling_factor", "2.5"),
        ("deepseek_v3", "n_group", 3),
        ("deepseek_v4", "scoring_func", "softmax"),
        ("deepseek_v4", "mlp_layer_types", ["moe", 3, "moe", "moe"]),
        ("ernie4_5_moe", "use_bias", True),
        ("minimax_m2", "shared_intermediate_size", 8),
        ("longcat_flash", "router_bias", True),
        ("longcat_flash", "zero_expert_type", "drop"),
        ("laguna", "moe_apply_router_weight_on_input", True),
        ("nemotron_h", "mlp_bias", True),
        ("nemotron_h", "hybrid_override_pattern", None),
        ("switch_transformers", "router_dtype", "int8"),
    ],
)
def test_a_setting_that_no_spec_describes(model_type, key, value):
    release = next(each for each in RELEASES.values() if each["model_type"] == model_type)
    spec_from_config(release, 3)
    misconfigured(release | {key: value}, layer=3)


# Arguments


@pytest.mark.parametrize("dtype", ["int32", "bool", "float8_e4m3fn", jnp.complex64, "floaty"])
def test_no_float_dtype(tmp_path, dtype):
    write(tmp_path, MIXTRAL, mixtral())
    with pytest.raises(ValueError, match=r"`dtype` must be one of bfloat16, float16, .*; got"):
        read_layer(tmp_path, layer=0, dtype=dtype)


def test_float64_needs_x64(tmp_path):
    write(tmp_path, MIXTRAL, mixtral())
    with jax.enable_x64(False):
        load_layer(tmp_path, layer=0)
        with pytest.raises(ValueError, match=r"`dtype` must be float32 or narrower .* got float64"):
            load_layer(tmp_path, layer=0, dtype="float64")


def test_a_config_nested_too_deeply(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"must hold JSON; .*recursion"):
        read_spec(tmp_path, layer=0)


def test_experts_are_not_counted_before_the_router_was_seen(tmp_path):
    write(tmp_path, MIXTRAL | {"num_local_experts": 2**24}, mixtral())
    refuses(tmp_path, "gate.weight", f"must be of shape ({2**24}, {D}); found (2, {D})")


def test_read_spec_needs_the_config_alone(tmp_path):
    assert read_spec(write(tmp_path, MIXTRAL), layer=0).d_model == D
