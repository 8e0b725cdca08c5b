"""Fields that contradict each other are named with their values."""

import dataclasses

import jaxtyping
import pytest

from moe_ref.spec import (
    CapacitySpec,
    ExpertSpec,
    LayerSpec,
    MXSpec,
    Numerics,
    RouterSpec,
    preset,
)

ROUTER = RouterSpec(num_experts=8, k=2)
GROUPS = RouterSpec(
    num_experts=8, k=2, num_groups=4, groups_kept=2, group_score="sum_top", group_top=2
)
EXPERT = ExpertSpec(d_hidden=16)
LAYER = LayerSpec(d_model=16, router=ROUTER, experts=EXPERT)
CAPACITY = CapacitySpec(expert_capacity=4)

# (a valid record, changes, what the message must hold)
BAD = [
    (ROUTER, {"num_experts": 0}, ["`num_experts`", "at least 1", "got 0"]),
    (ROUTER, {"num_experts": True}, ["`num_experts`", "int", "got True"]),
    (ROUTER, {"num_experts": 8.0}, ["`num_experts`", "int", "got 8.0"]),
    (ROUTER, {"k": 0}, ["`k`", "[1, num_experts=8]", "got 0"]),
    (ROUTER, {"k": 9}, ["`k`", "[1, num_experts=8]", "got 9"]),
    (ROUTER, {"k": 11, "zero_experts": 2}, ["`k`", "num_experts + zero_experts=10", "got 11"]),
    (ROUTER, {"zero_experts": -1}, ["`zero_experts`", "at least 0", "got -1"]),
    (ROUTER, {"hash_vocab": -1}, ["`hash_vocab`", "at least 0", "got -1"]),
    (ROUTER, {"score": "tanh"}, ["`score`", "softmax", "'tanh'"]),
    (ROUTER, {"choose_by": "index"}, ["`choose_by`", "logit", "'index'"]),
    (ROUTER, {"scale_site": "input"}, ["`scale_site`", "output", "'input'"]),
    (ROUTER, {"score_dtype": "int8"}, ["`score_dtype`", "int8"]),
    (
        ROUTER,
        {"hash_vocab": 32, "selection_bias": True},
        ["`selection_bias`", "hash_vocab=32", "got True"],
    ),
    (ROUTER, {"num_groups": 0}, ["`num_groups`", "at least 1", "got 0"]),
    (ROUTER, {"groups_kept": 2}, ["`groups_kept`", "num_groups=1", "got 2"]),
    (ROUTER, {"group_score": "max"}, ["`group_score`", "num_groups=1", "'max'"]),
    (GROUPS, {"group_score": "none"}, ["`group_score`", "num_groups=4", "'none'"]),
    (GROUPS, {"groups_kept": 5}, ["`groups_kept`", "num_groups=4", "got 5"]),
    (GROUPS, {"num_groups": 3}, ["`num_groups`", "num_experts=8", "got 3"]),
    (GROUPS, {"k": 5}, ["`k`", "=4", "got 5"]),
    (GROUPS, {"group_top": 3}, ["`group_top`", "num_experts / num_groups=2", "got 3"]),
    (GROUPS, {"group_top": 0}, ["`group_top`", "got 0"]),
    (GROUPS, {"zero_experts": 4}, ["`zero_experts`", "num_groups=4", "got"]),
    (ROUTER, {"renormalize_eps": 1e-6}, ["`renormalize_eps`", "renormalize='none'", "1e-06"]),
    (
        ROUTER,
        {"renormalize": "sum", "renormalize_eps": -1.0},
        ["`renormalize_eps`", "at least 0", "-1.0"],
    ),
    (ROUTER, {"renormalize": "clamp"}, ["`renormalize_eps`", "'clamp'", "got 0.0"]),
    (
        ROUTER,
        {"renormalize": "p_norm", "renormalize_p": 0.0},
        ["`renormalize_p`", "positive", "got 0.0"],
    ),
    (
        ROUTER,
        {"score": "softmax_selected", "renormalize": "sum"},
        ["`renormalize`", "softmax_selected", "'sum'"],
    ),
    (ROUTER, {"score": "none", "renormalize": "sum"}, ["`renormalize`", "'none'", "'sum'"]),
    (ROUTER, {"logit_softcap": 0.0}, ["`logit_softcap`", "positive", "got 0.0"]),
    (EXPERT, {"d_hidden": 0}, ["`d_hidden`", "at least 1", "got 0"]),
    (EXPERT, {"activation": "swish"}, ["`activation`", "silu", "'swish'"]),
    (EXPERT, {"swiglu_limit": 0.0}, ["`swiglu_limit`", "positive", "got 0.0"]),
    (EXPERT, {"swiglu_limit": 7.0, "gated": False}, ["`swiglu_limit`", "gated=False", "got 7.0"]),
    (EXPERT, {"up_offset": 1.0, "gated": False}, ["`up_offset`", "gated=False", "got 1.0"]),
    (
        EXPERT,
        {"swiglu_alpha": 1.702, "activation": "gelu"},
        ["`swiglu_alpha`", "activation='gelu'", "got 1.702"],
    ),
    (LAYER, {"d_model": 0}, ["`d_model`", "at least 1", "got 0"]),
    (LAYER, {"d_latent": 0}, ["`d_latent`", "positive", "got 0"]),
    (LAYER, {"shared_d_hidden": -1}, ["`shared_d_hidden`", "at least 0", "got -1"]),
    (LAYER, {"shared_gate": True}, ["`shared_gate`", "shared_d_hidden=0", "got True"]),
    (LAYER, {"weight_site": "middle"}, ["`weight_site`", "hidden", "'middle'"]),
    (LAYER, {"router": EXPERT}, ["`router`", "RouterSpec", "ExpertSpec"]),
    (CAPACITY, {"expert_capacity": -1}, ["`expert_capacity`", "at least 0", "got -1"]),
    (CAPACITY, {"expert_capacity": None}, ["`expert_capacity`", "`capacity_factor`", "None"]),
    (
        CAPACITY,
        {"capacity_factor": 1.0},
        ["`expert_capacity`", "not both", "expert_capacity=4, capacity_factor=1.0"],
    ),
    (
        CAPACITY,
        {"expert_capacity": None, "capacity_factor": float("nan")},
        ["`capacity_factor`", "finite", "nan"],
    ),
    (
        CAPACITY,
        {"expert_capacity": None, "capacity_factor": -0.5},
        ["`capacity_factor`", "at least 0", "-0.5"],
    ),
    (CAPACITY, {"drop_order": "random"}, ["`drop_order`", "k_major", "'random'"]),
    (CAPACITY, {"capacity_rounding": "round"}, ["`capacity_rounding`", "floor", "'round'"]),
    (Numerics(), {"inputs": "float8"}, ["`inputs`", "bfloat16", "'float8'"]),
    (MXSpec(), {"format": "fp8"}, ["`format`", "mxfp8_e4m3", "'fp8'"]),
    (MXSpec(), {"rule": "nearest"}, ["`rule`", "rceil_real", "'nearest'"]),
    (MXSpec(), {"nonfinite": "keep"}, ["`nonfinite`", "poison", "'keep'"]),
    (MXSpec(), {"wgrad": "hp"}, ["`wgrad`", "requantize", "'hp'"]),
]


@pytest.fixture
def no_import_hook():
    # The hook of the test run checks types before the records do; users have no hook.
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("no_import_hook")
@pytest.mark.parametrize(
    ("record", "changes", "expected"),
    BAD,
    ids=[
        f"{type(record).__name__}-{'-'.join(changes)}-{i}"
        for i, (record, changes, _) in enumerate(BAD)
    ],
)
def test_message_names_field_and_value(record, changes, expected):
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(record, **changes)
    message = str(caught.value)
    assert all(part in message for part in expected), message
    assert "\n" not in message


def test_replace_reaches_the_record_that_owns_a_field():
    spec = preset("switch-base").replace(
        d_model=32, k=2, d_hidden=24, expert_capacity=3, activation="gelu"
    )
    assert (spec.d_model, spec.router.k, spec.experts.d_hidden) == (32, 2, 24)
    assert spec.capacity == CapacitySpec(expert_capacity=3)
    assert spec.experts.activation == "gelu"


def test_replace_takes_whole_records_with_changes_to_them():
    spec = LAYER.replace(router=GROUPS, groups_kept=3, capacity=CAPACITY, expert_capacity=2)
    assert spec.router == dataclasses.replace(GROUPS, groups_kept=3)
    assert spec.capacity == CapacitySpec(expert_capacity=2)


def test_replace_refuses_unknown_fields():
    with pytest.raises(ValueError, match=r"`experts_per_token` must be a field .*; got 4\."):
        LAYER.replace(experts_per_token=4)


def test_replace_refuses_a_field_of_a_missing_record():
    with pytest.raises(ValueError, match="`expert_capacity`"):
        LAYER.replace(expert_capacity=4)


@pytest.mark.parametrize("record", [ROUTER, EXPERT, LAYER, CAPACITY, Numerics(), MXSpec()])
def test_records_are_frozen_and_hashable(record):
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.name = "other"
    assert hash(record) == hash(dataclasses.replace(record))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_own_numerics_accumulate_in_float32_at_least(dtype):
    ours = Numerics.of(dtype)
    wide = "float64" if dtype == "float64" else "float32"
    assert (ours.accumulate, ours.combine, ours.score) == (wide, wide, wide)
    assert (ours.inputs, ours.hidden, ours.weights, ours.output) == (dtype,) * 4
