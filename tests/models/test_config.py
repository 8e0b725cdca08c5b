"""Configurations of releases give the presets; which layers are MoE layers follows transformers."""

import pytest

from models.releases import RELEASES
from moe_ref.models import CheckpointError, spec_from_config
from moe_ref.models.families import ARCHITECTURES
from moe_ref.spec import preset, presets

# Presets that differ from another in sizes alone, or that an earlier layer of it is.
SIBLINGS = {"mixtral-8x22b", "qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v4-hash"}


def test_every_preset_and_every_model_type_has_a_release():
    assert set(RELEASES) | SIBLINGS == set(presets())
    aliases = {"kimi_k2"}
    assert {config["model_type"] for config in RELEASES.values()} | aliases == set(ARCHITECTURES)


@pytest.mark.parametrize("name", RELEASES)
def test_release_gives_the_preset(name):
    spec = spec_from_config(RELEASES[name], 3)
    assert spec == preset(name)
    assert "transformers 5.24.0" in spec.source
    assert "config.json" in spec.source


@pytest.mark.parametrize("name", RELEASES)
def test_it_is_found_inside_a_multimodal_model(name):
    outer = {"model_type": "some_vision_model", "text_config": RELEASES[name], "vision_config": {}}
    assert spec_from_config(outer, 3) == preset(name)


def test_siblings():
    small, large = RELEASES["gpt-oss-20b"], {"num_local_experts": 128}
    assert spec_from_config(small | large, 3) == preset("gpt-oss-120b")
    assert spec_from_config(RELEASES["deepseek-v4"], 2) == preset("deepseek-v4-hash")
    kimi = RELEASES["deepseek-v3"] | {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1}
    router = spec_from_config(kimi, 3).router
    assert (router.num_groups, router.group_score) == (1, "none")


# What transformers assumes where config.json is silent.
SILENT = {
    "qwen2-57b-a14b": ("norm_topk_prob", "none"),
    "qwen3-30b-a3b": ("norm_topk_prob", "none"),
    "qwen3-next": ("norm_topk_prob", "sum"),
    "olmoe-1b-7b": ("norm_topk_prob", "none"),
    "deepseek-v3": ("norm_topk_prob", "sum"),
    "lfm2-moe": ("norm_topk_prob", "sum"),
    "nemotron-h": ("norm_topk_prob", "sum"),
}


@pytest.mark.parametrize("name", SILENT)
def test_silence_means_what_transformers_assumes(name):
    key, rule = SILENT[name]
    config = {k: v for k, v in RELEASES[name].items() if k != key}
    assert spec_from_config(config, 3).router.renormalize == rule
    assert spec_from_config(config | {key: False}, 3).router.renormalize == "none"
    assert spec_from_config(config | {key: True}, 3).router.renormalize == "sum"


def test_deepseek_v2_never_renormalises():
    config = RELEASES["deepseek-v2"] | {"norm_topk_prob": True}
    assert spec_from_config(config, 3) == preset("deepseek-v2")


def test_deepseek_v2_without_groups():
    greedy = RELEASES["deepseek-v2"] | {"topk_method": "greedy"}
    assert spec_from_config(greedy, 3).router.num_groups == 1


def test_dbrx_without_a_norm():
    config = RELEASES["dbrx"]
    ffn = config["ffn_config"] | {"moe_normalize_expert_weights": None}
    spec = spec_from_config(config | {"ffn_config": ffn}, 0)
    assert spec.router.renormalize == "none"


def test_laguna_scales_the_output():
    config = RELEASES["laguna"]
    config |= {"moe_routed_scaling_factor": 2.5, "moe_router_logit_softcapping": 30.0}
    router = spec_from_config(config, 3).router
    assert (router.scale, router.scale_site, router.logit_softcap) == (2.5, "output", 30.0)


def test_nemotron_with_a_latent():
    spec = spec_from_config(RELEASES["nemotron-h"] | {"moe_latent_size": 1024}, 3)
    assert (spec.d_latent, spec.d_expert) == (1024, 1024)


@pytest.mark.parametrize(
    ("hidden_act", "activation"),
    [
        ("silu", "silu"),
        ("swish", "silu"),
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("relu", "relu"),
        ("relu2", "relu_squared"),
    ],
)
def test_activations(hidden_act, activation):
    config = RELEASES["mixtral-8x7b"] | {"hidden_act": hidden_act}
    assert spec_from_config(config, 0).experts.activation == activation


# (release, changes, the MoE layers as the error message lists them)
DENSE = [
    ("qwen3-30b-a3b", {"num_hidden_layers": 6, "decoder_sparse_step": 2}, "1, 3, 5"),
    ("qwen3-30b-a3b", {"num_hidden_layers": 6, "mlp_only_layers": [0, 3]}, "1-2, 4-5"),
    ("deepseek-v3", {"num_hidden_layers": 6}, "3-5"),
    ("deepseek-v2", {"num_hidden_layers": 3, "first_k_dense_replace": 2}, "2"),
    ("glm4-moe", {"num_hidden_layers": 3}, "1-2"),
    ("llama4-scout", {"num_hidden_layers": 6, "interleave_moe_layer_step": 2}, "1, 3, 5"),
    ("llama4-scout", {"num_hidden_layers": 6, "moe_layers": [2, 3]}, "2-3"),
    ("ernie4.5-moe", {"num_hidden_layers": 8, "moe_layer_interval": 3}, "2, 5"),
    ("ernie4.5-moe", {"num_hidden_layers": 8, "moe_layer_end_index": 4}, "1-4"),
    ("jamba", {"num_hidden_layers": 8, "expert_layer_period": 4}, "1, 5"),
    ("nemotron-h", {"hybrid_override_pattern": "ME*-E"}, "1, 4"),
    ("nemotron-h", {"layers_block_type": ["mamba", "attention", "moe"]}, "2"),
    ("lfm2-moe", {"num_hidden_layers": 5}, "2-4"),
    ("laguna", {"num_hidden_layers": 4}, "1-3"),
    ("laguna", {"num_hidden_layers": 3, "mlp_layer_types": ["dense", "dense", "sparse"]}, "2"),
    ("switch-base", {"num_layers": 6, "num_sparse_encoder_layers": 2}, "1, 4"),
    ("jamba", {"num_experts": 1, "num_experts_per_tok": 1}, "none at all"),
]


@pytest.mark.parametrize(("name", "changes", "expected"), DENSE)
def test_dense_layers_are_named(name, changes, expected):
    config = RELEASES[name] | changes
    wanted = rf"`layer` must be an MoE layer, one of {expected}; got 0, which is dense\."
    with pytest.raises(CheckpointError, match=wanted):
        spec_from_config(config, 0)


def test_stacks_of_an_encoder_decoder():
    config = RELEASES["switch-base"] | {"num_decoder_layers": 4, "num_sparse_decoder_layers": 4}
    assert spec_from_config(config, "encoder.1") == spec_from_config(config, 1)
    assert spec_from_config(config, "decoder.0") == preset("switch-base")
    for wrong in ("decoder.4", "decoder.x", "decoder", "middle.0", "decoder.-1", "1"):
        with pytest.raises(CheckpointError, match="`layer` must be") as caught:
            spec_from_config(config, wrong)
        assert repr(wrong) in str(caught.value)
