"""Presets construct, compare, shrink, and say where their numbers come from."""

import dataclasses
import json

import pytest

from moe_ref.spec import LayerSpec, preset, presets
from spec.shrink import shrink

ASKED_FOR = [
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen2-57b-a14b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "qwen3-next",
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v4",
    "deepseek-v4-hash",
    "olmoe-1b-7b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "llama4-scout",
    "granitemoe",
    "glm4-moe",
    "minimax-m2",
    "ernie4.5-moe",
    "dbrx",
    "jamba",
    "nemotron-h",
    "switch-base",
    "longcat-flash",
    "lfm2-moe",
    "jetmoe",
    "laguna",
]

# Parameters of one layer's experts as (routed, shared), by hand from the published sizes:
# experts x matrices x d_model x d_hidden.
PARAMETERS = {
    "mixtral-8x7b": (8 * 3 * 4096 * 14336, 0),
    "qwen2-57b-a14b": (64 * 3 * 3584 * 2560, 3 * 3584 * 20480),
    "deepseek-v2": (160 * 3 * 5120 * 1536, 3 * 5120 * 3072),
    "deepseek-v3": (256 * 3 * 7168 * 2048, 3 * 7168 * 2048),
    "nemotron-h": (128 * 2 * 2688 * 1856, 2 * 2688 * 3712),
    "switch-base": (8 * 2 * 768 * 3072, 0),
}


def test_names_are_sorted_and_complete():
    assert list(presets()) == sorted(presets())
    assert set(presets()) == set(ASKED_FOR)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"`name` must be one of .*deepseek-v3.*; got 'gpt-5'"):
        preset("gpt-5")


@pytest.mark.parametrize("name", presets())
def test_preset_is_a_value(name):
    spec = preset(name)
    assert isinstance(spec, LayerSpec)
    assert spec.name == name
    assert "transformers 5.24.0" in spec.source
    assert "sizes:" in spec.source
    copy = dataclasses.replace(spec)
    assert copy == spec
    assert hash(copy) == hash(spec)
    assert {spec: 1}[copy] == 1


@pytest.mark.parametrize("name", presets())
def test_name_and_source_are_no_part_of_the_value(name):
    assert preset(name).replace(name="", source="") == preset(name)


@pytest.mark.parametrize("name", presets())
def test_preset_survives_the_sizes_of_an_outside_check(name):
    spec = preset(name)
    small = spec.replace(d_model=64, d_hidden=48, num_experts=16)
    assert (small.d_model, small.experts.d_hidden, small.router.num_experts) == (64, 48, 16)
    back = small.replace(
        d_model=spec.d_model,
        d_hidden=spec.experts.d_hidden,
        num_experts=spec.router.num_experts,
    )
    assert back == spec


@pytest.mark.parametrize("name", presets())
def test_shrink_changes_sizes_and_no_rule(name):
    spec, small = preset(name), shrink(preset(name))
    assert small.d_model == 32
    assert small.router.num_choices == 16
    assert small.router.k == spec.router.k
    sizes = {"num_experts", "zero_experts", "hash_vocab"}
    for field in dataclasses.fields(spec.router):
        ours, theirs = getattr(small.router, field.name), getattr(spec.router, field.name)
        assert ours == theirs or (field.name in sizes and bool(ours) == bool(theirs))
    assert bool(small.shared_d_hidden) == bool(spec.shared_d_hidden)
    assert shrink(small) == small


def test_presets_differ():
    specs = [preset(name) for name in presets()]
    assert len(set(specs)) == len(specs)


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_give_the_parameter_count(name):
    spec = preset(name)
    matrices = spec.experts.columns // spec.experts.d_hidden + 1
    routed = spec.router.num_experts * matrices * spec.d_expert * spec.experts.d_hidden
    shared = matrices * spec.d_model * spec.shared_d_hidden
    assert (routed, shared) == PARAMETERS[name]


def test_router_dtypes_are_those_of_the_code():
    def dtypes(name):
        r = preset(name).router
        return (r.param_dtype, r.projection_dtype, r.score_dtype, r.weight_dtype)

    single = "float32"
    assert dtypes("mixtral-8x7b") == (None, None, single, single)
    assert dtypes("qwen3-30b-a3b") == (None, None, single, None)
    assert dtypes("deepseek-v2") == (single, single, single, single)
    assert dtypes("deepseek-v3") == (single, single, single, single)
    assert dtypes("deepseek-v4") == (None, None, None, None)
    assert dtypes("gpt-oss-20b") == (None, None, None, None)
    assert dtypes("granitemoe") == (None, None, single, None)
    assert dtypes("ernie4.5-moe") == (single, single, single, None)
    assert dtypes("longcat-flash") == (None, single, single, single)
    assert dtypes("switch-base") == (None, single, single, None)


@pytest.mark.parametrize("name", presets())
def test_a_spec_survives_json(name):
    spec = preset(name)
    again = LayerSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert (again.name, again.source) == (spec.name, spec.source)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 3}, "`fields` must be those of a LayerSpec; .*'width'"),
        ({"router": {"num_experts": 4, "kk": 1}}, "`fields` must be those of a LayerSpec"),
        ({"router": {"num_experts": 4, "k": 9}}, r"`k` must be in \[1, num_experts=4\]; got 9"),
    ],
)
def test_fields_that_are_none_of_a_spec(change, said):
    with pytest.raises(ValueError, match=said):
        LayerSpec.from_dict(preset("switch-base").to_dict() | change)
